"""Saxml's LMService over real gRPC, with arithmetic models."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import pytest

from model_server.loading.loaded import Loaded
from model_server.loading.loaded_model import LoadedModel
from model_server.text.chat_template import ChatTemplate
from model_server.text.tokenizer import ByteTokenizer, HfTokenizer
from model_server.text.vocabularies.sentence_piece import PieceKind, Pieces, sentence_piece
from sax.errors import InvalidRequest, NotLoaded, UnsupportedParameter
from sax.proto import common_pb2, lm_pb2
from sax.types import ModelSpec, Progress, SamplingParams
from tests.model_server.engine.fake_runner import logprob
from tests.model_server.fake_batched import fake_gradients
from tests.model_server.fake_model import FakeModels, answer_to, text_of
from tests.model_server.fake_server import MODEL, error_of, lm_request, serving
from tests.model_server.waiting import until


class Changed(FakeModels):
    """The arithmetic model with other facts about it."""

    def __init__(self, **changes: Any) -> None:
        super().__init__()
        self._changes = changes

    def __call__(self, spec: ModelSpec, report: Callable[[Progress], None]) -> LoadedModel:
        loaded = super().__call__(spec, report)
        assert isinstance(loaded, Loaded)
        return replace(loaded, **self._changes)


def unigram(pieces: list[str]) -> str:
    """A tokenizer.json of SentencePiece's kind with these pieces."""
    settings = Pieces(
        unigram=True,
        texts=[*pieces, "<unk>"],
        scores=[-1.0] * (len(pieces) + 1),
        kinds=[*[PieceKind.NORMAL] * len(pieces), PieceKind.UNKNOWN],
        byte_fallback=False,
    )
    return sentence_piece(settings).serialized()


async def test_generate_answers_as_saxml_does() -> None:
    async with serving(FakeModels()) as served:
        reply = await served.lm.Generate(lm_request(per_example_max_decode_steps=6))
        (answer,) = reply.texts
        tokens = answer_to("hi", 6)
        assert answer.text == text_of(tokens)
        seen = list(b"hi")
        expected = sum(logprob([*seen, *tokens[:end]], tokens[end]) for end in range(6))
        assert answer.score == pytest.approx(expected)
        assert (reply.prompt_tokens, reply.completion_tokens) == (2, 6)


async def test_a_query_to_a_chat_model_is_a_users_turn() -> None:
    async with serving(FakeModels(chat_queries=True)) as served:
        reply = await served.lm.Generate(lm_request(per_example_max_decode_steps=6))
        tokens = answer_to("user: hi\nassistant: ", 6)
        assert reply.texts[0].text == text_of(tokens)


async def test_an_answer_continues_its_text_and_a_chats_answer_begins_one() -> None:
    """Every token of this vocabulary is a word with a space before it, as in SentencePiece."""
    letters = [f"\u2581{chr(0x100 + place)}" for place in range(256)]
    words = HfTokenizer(unigram(letters))
    (first, *rest) = answer_to([*words.encode("\u0105")], 4)
    texts = "".join(f" {chr(0x100 + token)}" for token in (first, *rest))
    async with serving(Changed(tokenizer=words)) as served:
        request = lm_request("\u0105", per_example_max_decode_steps=4)
        assert (await served.lm.Generate(request)).texts[0].text == texts
        streamed = [reply.items[0].text async for reply in served.lm.GenerateStream(request)]
        assert "".join(streamed) == texts
    template = ChatTemplate("{{ messages[0].content }}")
    chat = Changed(tokenizer=words, chat_queries=True, chat_template=template)
    async with serving(chat) as served:
        assert (await served.lm.Generate(request)).texts[0].text == texts.removeprefix(" ")


async def test_eos_id_is_one_sequence_that_ends_an_answer_and_stays_in_it() -> None:
    tokens = answer_to("hi", 8)
    async with serving(FakeModels()) as served:
        request = lm_request(per_example_max_decode_steps=8)
        for sequence, count in [(tokens[2:4], 4), (tokens[3:1:-1], 8), ((*b"hi", tokens[0]), 1)]:
            request.extra_inputs.tensors["eos_id"].values[:] = [0.0, *sequence]
            reply = await served.lm.Generate(request)
            assert reply.texts[0].text == text_of(tokens[:count])
        await until(lambda: served.servable().stats().slots_used == 0)


async def test_a_model_of_token_ids_takes_and_gives_them() -> None:
    tokens = answer_to([5, 6, 7], 4)
    ids = Changed(tokenized_input=True, tokenized_output=True)
    async with serving(ids) as served:
        request = lm_request("5,6, 7", per_example_max_decode_steps=4)
        reply = await served.lm.Generate(request)
        assert reply.texts[0].text == ",".join(map(str, tokens))
        text = ""
        async for reply in served.lm.GenerateStream(request):
            text = text[: reply.items[0].prefix_len] + reply.items[0].text
        assert text == ",".join(map(str, tokens))
        error = await error_of(served.lm.Generate(lm_request("five")))
        assert isinstance(error, InvalidRequest)
        assert error.param == "text"
        score = lm_pb2.ScoreRequest(model_key=MODEL, prefix="5,6", suffix=["7,8", "7"])
        second, first = (await served.lm.Score(score)).logp
        assert first == pytest.approx(logprob([5, 6], 7))
        assert second == pytest.approx(first + logprob([5, 6, 7], 8))
        score.suffix[:] = ["7,256"]
        error = await error_of(served.lm.Score(score))
        assert isinstance(error, InvalidRequest)
        assert error.param == "suffix"


async def test_a_model_of_token_ids_may_answer_text() -> None:
    async with serving(Changed(tokenized_input=True)) as served:
        reply = await served.lm.Generate(lm_request("104,105", per_example_max_decode_steps=4))
        assert reply.texts[0].text == text_of(answer_to("hi", 4))


@pytest.mark.parametrize("chat", [True, False])
async def test_score_and_generate_read_a_prefix_alike_and_refuse_an_empty_one(chat: bool) -> None:
    async with serving(FakeModels(chat_queries=chat)) as served:
        request = lm_request(per_example_max_decode_steps=6)
        (answer,) = (await served.lm.Generate(request)).texts
        score = lm_pb2.ScoreRequest(model_key=MODEL, prefix=request.text, suffix=[answer.text])
        assert list((await served.lm.Score(score)).logp) == pytest.approx([answer.score])
        error = await error_of(served.lm.Generate(lm_request("")))
        assert isinstance(error, InvalidRequest)
        assert "empty" in error.text
        if chat:  # a score needs a message
            score = lm_pb2.ScoreRequest(model_key=MODEL, prefix="", suffix=["a"])
            error = await error_of(served.lm.Score(score))
            assert isinstance(error, InvalidRequest)
            assert error.param == "prefix"
            assert 'QUERY_FORMAT="raw"' in error.text


async def test_generate_gives_its_samples_best_first_and_a_seed_repeats_them() -> None:
    models = FakeModels(samples=3, defaults=SamplingParams(temperature=1.0, max_tokens=10))
    async with serving(models) as served:
        reply = await served.lm.Generate(lm_request(seed=5))
        scores = [answer.score for answer in reply.texts]
        assert len(scores) == 3
        assert (reply.prompt_tokens, reply.completion_tokens) == (2, 30)
        assert scores == sorted(scores, reverse=True)
        assert len({answer.text for answer in reply.texts}) > 1
        assert await served.lm.Generate(lm_request(seed=5)) == reply


async def test_without_a_seed_the_same_request_gets_the_same_samples_if_the_flags_say_so() -> None:
    defaults = SamplingParams(temperature=1.0, max_tokens=10)
    replies: list[list[lm_pb2.GenerateResponse]] = []
    for one_seed in (True, True, False):
        models = FakeModels(samples=3, defaults=defaults)
        async with serving(models, deterministic_rng=one_seed) as served:
            replies.append([await served.lm.Generate(lm_request()) for _ in range(2)])
    (first, again), (other_process, _), (drawn, drawn_again) = replies
    assert first == again == other_process
    assert drawn != drawn_again
    assert len({answer.text for answer in first.texts}) > 1


async def test_each_sample_may_have_a_temperature_of_its_own() -> None:
    defaults = SamplingParams(temperature=0.0, max_tokens=6)
    async with serving(FakeModels(samples=3, defaults=defaults)) as served:
        greedy = text_of(answer_to("hi", 6))
        request = lm_request(seed=5)
        request.extra_inputs.tensors["temperature"].values[:] = [0.0, 0.0, 50.0]
        texts = [answer.text for answer in (await served.lm.Generate(request)).texts]
        assert texts.count(greedy) == 2
        request.extra_inputs.tensors["temperature"].values[:] = [0.0, 1.0]
        error = await error_of(served.lm.Generate(request))
        assert isinstance(error, InvalidRequest)
        assert error.param == "extra_inputs.temperature"


async def test_generate_stream_adds_up_piece_by_piece() -> None:
    gate = threading.Semaphore(0)
    defaults = SamplingParams(temperature=1.0, max_tokens=12)
    async with serving(FakeModels(gate=gate, samples=2, defaults=defaults)) as served:
        call = served.lm.GenerateStream(lm_request(seed=5))
        texts, scores, messages = ["", ""], [0.0, 0.0], 0
        gate.release(2)  # so little at a time that it cannot all be one message
        while (reply := await call.read()) is not grpc.aio.EOF:
            messages += 1
            gate.release(2)
            for index, item in enumerate(reply.items):
                texts[index] = texts[index][: item.prefix_len] + item.text
                scores[index] = item.scores[0]
        assert messages > 1
        gate.release(1000)
        whole = await served.lm.Generate(lm_request(seed=5))
        assert sorted(texts) == sorted(answer.text for answer in whole.texts)
        assert max(scores) == whole.texts[0].score


async def test_unknown_extra_inputs_are_refused_by_name() -> None:
    async with serving(FakeModels()) as served:
        error = await error_of(served.lm.Generate(lm_request(num_beams=4)))
        assert isinstance(error, UnsupportedParameter)
        assert error.param == "extra_inputs.num_beams"
        score = lm_pb2.ScoreRequest(
            model_key=MODEL,
            suffix=["x"],
            prefix="y",
            extra_inputs=common_pb2.ExtraInputs(items={"temperature": 1}),
        )
        assert isinstance(await error_of(served.lm.Score(score)), UnsupportedParameter)


async def test_score_sums_the_log_probabilities_of_each_suffix() -> None:
    async with serving(FakeModels()) as served:
        reply = await served.lm.Score(
            lm_pb2.ScoreRequest(model_key=MODEL, prefix="ab", suffix=["c", "de"])
        )
        first = logprob(list(b"ab"), ord("c"))
        second = logprob(list(b"ab"), ord("d")) + logprob(list(b"abd"), ord("e"))
        assert list(reply.logp) == pytest.approx([first, second])


async def test_a_score_of_nothing_is_refused_and_no_suffixes_have_no_scores() -> None:
    async with serving(FakeModels()) as served:
        for prefix, suffix, param in (("", "x", "prefix"), ("a", "", "suffix")):
            request = lm_pb2.ScoreRequest(model_key=MODEL, prefix=prefix, suffix=[suffix])
            error = await error_of(served.lm.Score(request))
            assert isinstance(error, InvalidRequest), param
            assert error.param == param
        call = served.lm.Score(lm_pb2.ScoreRequest(model_key=MODEL, prefix="a"))
        assert list((await call).logp) == []
        assert "query_cost_v0" not in dict(await call.trailing_metadata())  # nothing was computed
        request = lm_pb2.ScoreRequest(model_key="/sax/test/other", prefix="a")
        assert isinstance(await error_of(served.lm.Score(request)), NotLoaded)


async def test_a_name_that_is_too_long_is_refused_before_the_model_is_looked_for() -> None:
    async with serving(FakeModels()) as served:
        request = lm_request()
        request.model_key = "/sax/test/" + "x" * 10_000
        error = await error_of(served.lm.Generate(request))
        assert isinstance(error, InvalidRequest)
        assert error.param == "model_key"
        with pytest.raises(grpc.aio.AioRpcError) as streamed:
            await served.lm.GenerateStream(request).read()
        assert "model_key" in (streamed.value.details() or "")


class StartToken(ByteTokenizer):
    """Every text begins with token 1."""

    def encode(self, text: str, *, add_bos: bool = True) -> list[int]:
        return [*([1] if add_bos else []), *super().encode(text)]


async def test_an_empty_text_is_the_start_token_where_the_model_has_one() -> None:
    async with serving(Changed(tokenizer=StartToken(256))) as served:
        reply = await served.lm.Generate(lm_request("", per_example_max_decode_steps=4))
        assert reply.texts[0].text == text_of(answer_to([1], 4))
        assert reply.prompt_tokens == 1
        request = lm_pb2.ScoreRequest(model_key=MODEL, prefix="", suffix=["b"])
        assert list((await served.lm.Score(request)).logp) == pytest.approx(
            [logprob([1], ord("b"))]
        )


async def test_an_empty_text_is_the_class_s_start_token_which_no_other_text_begins_with() -> None:
    async with serving(Changed(start_token=7)) as served:
        reply = await served.lm.Generate(lm_request("", per_example_max_decode_steps=4))
        assert reply.texts[0].text == text_of(answer_to([7], 4))
        request = lm_pb2.ScoreRequest(model_key=MODEL, prefix="", suffix=["b"])
        assert list((await served.lm.Score(request)).logp) == pytest.approx(
            [logprob([7], ord("b"))]
        )
        reply = await served.lm.Generate(lm_request(per_example_max_decode_steps=4))
        assert reply.texts[0].text == text_of(answer_to("hi", 4))


async def test_an_empty_list_of_ids_is_the_start_token() -> None:
    async with serving(Changed(start_token=7, tokenized_input=True)) as served:
        reply = await served.lm.Generate(lm_request("", per_example_max_decode_steps=4))
        assert reply.texts[0].text == text_of(answer_to([7], 4))
        request = lm_pb2.ScoreRequest(model_key=MODEL, prefix="", suffix=["8"])
        assert list((await served.lm.Score(request)).logp) == pytest.approx([logprob([7], 8)])


async def test_the_cost_of_a_query_comes_behind_the_reply() -> None:
    async with serving(FakeModels(delay_s=0.005, samples=2)) as served:
        request = lm_request(per_example_max_decode_steps=6)
        score = lm_pb2.ScoreRequest(model_key=MODEL, prefix="ab", suffix=["c"])
        for call in (served.lm.Generate(request), served.lm.Score(score)):
            await call
            assert int(cost_in(await call.trailing_metadata())) >= 1
        stream = served.lm.GenerateStream(request)
        assert [reply async for reply in stream]
        assert int(cost_in(await stream.trailing_metadata())) >= 1


async def test_the_cost_of_a_gradient_comes_behind_it() -> None:
    methods = ("lm.score", "lm.gradient")
    async with serving(Changed(gradients=fake_gradients(), methods=methods)) as served:
        call = served.lm.Gradient(lm_pb2.GradientRequest(model_key=MODEL, prefix="ab", suffix="c"))
        assert list((await call).score) == [3.0]
        assert int(cost_in(await call.trailing_metadata())) >= 1


async def test_the_cost_of_an_embedding_comes_behind_it() -> None:
    async with serving(FakeModels()) as served:
        await served.load("/sax/test/embedder", "fake.Embedder")
        call = served.lm.Embed(lm_pb2.EmbedRequest(model_key="/sax/test/embedder", text="ab"))
        await call
        assert int(cost_in(await call.trailing_metadata())) >= 1


def cost_in(trailer: Any) -> str:
    return dict(trailer)["query_cost_v0"]


async def test_a_caller_of_generate_that_goes_away_frees_its_slots() -> None:
    models = FakeModels(samples=2, delay_s=0.01, defaults=SamplingParams(max_tokens=500))
    async with serving(models) as served:
        call = served.lm.Generate(lm_request())
        servable = served.servable()
        await until(lambda: servable.stats().running == 2)
        call.cancel()
        await until(lambda: servable.stats().slots_used == 0)
        assert servable.cancelled == 2
