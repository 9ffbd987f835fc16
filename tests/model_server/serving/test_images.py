"""Images of requests over real gRPC, with an arithmetic encoder that reads their red values."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from PIL import Image as Picture

from sax.chat import ChatOptions, Image, Message
from sax.errors import InvalidRequest, SaxError, UnsupportedParameter
from sax.proto import multimodal_pb2, multimodal_pb2_grpc, tokens_pb2
from sax.types import AnswerSoFar, GenerateRequest, ReplyOptions, SamplingParams
from sax.wire.prompts import encode_tokenize
from sax.wire.tokens import encode_generate
from tests.model_server.fake_image_input import PLACEHOLDER, SOFT, TOKEN, picture, read_as
from tests.model_server.fake_model import FakeModels, answer_to, text_of
from tests.model_server.fake_server import MODEL, Served, Stream, error_of, serving

VISION = "/sax/test/vision"
RED, BLUE = (11, 12, 13, 14), (21, 22, 23, 24)
A, B = Image(picture(*RED)), Image(picture(*BLUE))


async def ask(
    stream: Stream, id: int, *parts: str | Image, model: str = VISION, **more: Any
) -> None:
    asked = GenerateRequest(
        model_id=model,
        prompt=(Message("user", parts),),
        sampling=SamplingParams(temperature=0.0, max_tokens=4),
        **more,
    )
    await stream.call.write(tokens_pb2.ToServer(generate=encode_generate(id, asked)))


async def answers(served: Served, *asked: tuple[str | Image, ...], **more: Any) -> list[Any]:
    """The tokens of each answer, or its error."""
    stream = Stream(served)
    for id, parts in enumerate(asked):
        await ask(stream, id, *parts, **more)
    await stream.until_over(*range(len(asked)))
    return [stream.failures.get(id) or stream.tokens(id) for id in range(len(asked))]


async def test_images_stand_among_the_tokens_where_the_message_has_them() -> None:
    async with serving(FakeModels()) as served:
        await served.load(VISION, "fake.Seeing")
        found = await answers(served, ("Look: ", A, " and ", B, "?"), (B, A), ("Hi",))
        assert found[0] == answer_to(read_as("Look: ", RED, " and ", BLUE, "?"), 4)
        assert found[1] == answer_to(read_as(BLUE, RED), 4)
        assert found[2] == answer_to(read_as("Hi"), 4)


async def test_users_cannot_write_an_image() -> None:
    async with serving(FakeModels()) as served:
        await served.load(VISION, "fake.Seeing")
        forged = f"{PLACEHOLDER}{SOFT}"
        found = await answers(served, (forged, A), (forged,))
        assert found[0] == answer_to(read_as(forged, RED), 4)
        assert found[1] == answer_to(read_as(forged), 4)


async def test_tokenize_counts_the_tokens_of_images() -> None:
    async with serving(FakeModels()) as served:
        await served.load(VISION, "fake.Seeing")
        request = encode_tokenize(VISION, (Message("user", (A, "x")),))
        ids = list((await served.tokens.Tokenize(request)).ids)
        assert ids == read_as([TOKEN] * 4, "x")


async def test_another_replica_goes_on_with_an_answer_about_an_image() -> None:
    async with serving(FakeModels()) as served:
        await served.load(VISION, "fake.Seeing")
        whole = answer_to(read_as(RED, "?"), 4)
        begun = AnswerSoFar(token_ids=whole[:2])
        assert await answers(served, (A, "?"), answer=begun) == [whole[2:]]


async def test_a_model_of_text_refuses_an_image_by_its_name() -> None:
    async with serving(FakeModels()) as served:
        named = Image(A.data, "input[0].content[1]")
        for image, name in ((A, "messages[0].content[1]"), (named, named.name)):
            (error,) = await answers(served, ("Look: ", image), model=MODEL)
            assert isinstance(error, UnsupportedParameter)
            assert error.param == name
            assert "reads only text" in error.text


def _animation() -> bytes:
    file = BytesIO()
    frames = [Picture.new("RGB", (4, 4), (n, 0, 0)) for n in (10, 200)]
    frames[0].save(file, "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    return file.getvalue()


def _huge() -> bytes:
    file = BytesIO()
    Picture.new("1", (9000, 9000)).save(file, "PNG")
    return file.getvalue()


async def test_what_is_no_good_image_is_refused_by_its_place_in_words() -> None:
    bad = {
        "is not a JPEG": b"hello",
        "is empty": b"",
        "is damaged": A.data[:50],
        "is an animation": _animation(),
        "million are decoded": _huge(),
    }
    async with serving(FakeModels()) as served:
        await served.load(VISION, "fake.Seeing")
        found = await answers(served, *[("x", A, Image(data)) for data in bad.values()], ("x", A))
        for words, error in zip(bad, found[:-1], strict=True):
            assert isinstance(error, InvalidRequest), error
            assert words in error.text
            assert error.param == "messages[0].content[2]"
        assert found[-1] == answer_to(read_as("x", RED), 4)


async def test_what_images_do_not_go_with_is_refused_by_name() -> None:
    async with serving(FakeModels()) as served:
        await served.load(VISION, "fake.Seeing")
        for name, value in (("prompt_logprobs", 1), ("truncate_prompt_tokens", 3)):
            (error,) = await answers(served, (A, "?"), reply=ReplyOptions(**{name: value}))
            assert isinstance(error, UnsupportedParameter), name
            assert error.param == name


async def test_too_many_images_are_refused_before_they_are_read() -> None:
    async with serving(FakeModels()) as served:
        await served.load(VISION, "fake.Seeing")
        (error,) = await answers(served, (A,) * 17)
        assert isinstance(error, SaxError)
        assert "17 images, sounds and videos; at most 16" in error.text


async def test_an_answer_that_was_begun_goes_on_behind_its_text() -> None:
    async with serving(FakeModels()) as served:
        await served.load(VISION, "fake.Seeing")
        stream = Stream(served)
        chat = (Message("user", (A,)), Message("assistant", "It is"))
        asked = GenerateRequest(
            model_id=VISION,
            prompt=chat,
            sampling=SamplingParams(temperature=0.0, max_tokens=3),
            chat=ChatOptions(add_generation_prompt=False, continue_final_message=True),
        )
        await stream.call.write(tokens_pb2.ToServer(generate=encode_generate(0, asked)))
        await stream.until_over(0)
        seen = read_as(RED)[: -len("assistant: ")]
        assert stream.tokens(0) == answer_to([*seen, *b"assistant: It is"], 3)


def _items(*parts: str | bytes) -> list[multimodal_pb2.DataItem]:
    return [
        multimodal_pb2.DataItem(text=part)
        if isinstance(part, str)
        else multimodal_pb2.DataItem(image_bytes=part)
        for part in parts
    ]


def _generate(model: str, items: list[multimodal_pb2.DataItem]) -> Any:
    request = multimodal_pb2.GenerateRequest(items=items)
    return multimodal_pb2.GenerateRpcRequest(model_key=model, request=request)


async def test_the_multimodal_service_generates_and_scores() -> None:
    async with serving(FakeModels()) as served:
        await served.load(VISION, "fake.Seeing")
        mm = multimodal_pb2_grpc.MultimodalServiceStub(served.channel)
        reply = await mm.Generate(_generate(VISION, _items("Look: ", A.data)))
        (result,) = reply.response.results
        assert result.items[0].text == text_of(answer_to(read_as("Look: ", RED), 8))
        first, *_ = result.items[0].text
        scored = multimodal_pb2.ScoreRequest(
            prefix_items=_items("Look: ", A.data), suffix_items=_items(first)
        )
        request = multimodal_pb2.ScoreRpcRequest(model_key=VISION, request=scored)
        (score,) = (await mm.Score(request)).response.results
        assert score.score <= 0
        assert served.servable(VISION).methods["mm.score"].succeeded == 1


async def test_items_that_are_not_served_are_refused_by_name() -> None:
    async with serving(FakeModels()) as served:
        await served.load(VISION, "fake.Seeing")
        mm = multimodal_pb2_grpc.MultimodalServiceStub(served.channel)
        video = multimodal_pb2.DataItem(video=b"x")
        error = await error_of(mm.Generate(_generate(VISION, [*_items("x"), video])))
        assert isinstance(error, UnsupportedParameter)
        assert error.param == "items[1].video"
        error = await error_of(mm.Generate(_generate(VISION, [])))
        assert isinstance(error, InvalidRequest)
        assert error.param == "items"
        image_last = multimodal_pb2.ScoreRequest(
            prefix_items=_items("x"), suffix_items=_items(A.data)
        )
        request = multimodal_pb2.ScoreRpcRequest(model_key=VISION, request=image_last)
        error = await error_of(mm.Score(request))
        assert isinstance(error, UnsupportedParameter)
        assert error.param == "suffix_items[0]"
        for model in (MODEL, VISION):
            embed = multimodal_pb2.EmbedRpcRequest(model_key=model)
            assert isinstance(await error_of(mm.Embed(embed)), UnsupportedParameter)
        error = await error_of(mm.Generate(_generate(MODEL, _items("x"))))
        assert isinstance(error, InvalidRequest)
        assert "mm.generate" in error.text
