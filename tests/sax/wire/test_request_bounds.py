"""Every gRPC field is refused by name when it is one over its bound, and passes at its bound."""

from collections.abc import Callable
from typing import Any

import pytest

from sax.errors import InvalidRequest
from sax.fields.field import RequestRoute
from sax.fields.table import (
    IMAGE_BYTES,
    IMAGES,
    LABEL_BYTES,
    MODEL_BYTES,
    TEXT_BYTES,
    TOKEN_IDS,
    field,
)
from sax.proto import common_pb2, custom_pb2, lm_pb2, multimodal_pb2, tokens_pb2
from sax.wire.request_bounds import (
    check_custom,
    check_detokenize,
    check_embed,
    check_generate,
    check_items,
    check_question,
    check_score,
    check_token,
    check_tokenize,
)
from tests.each_case import each_case

Make = Callable[[int], Any]


def stop(count: int, size: int) -> tokens_pb2.Generate:
    return tokens_pb2.Generate(sampling=tokens_pb2.Sampling(stop=["x" * size] * count))


def chat(count: int, role: int = 0, content: int = 0) -> tokens_pb2.Chat:
    turn = tokens_pb2.Message(role="r" * role, content="c" * content)
    return tokens_pb2.Chat(messages=[turn] * count)


def pictures(count: int, size: int = 1, name: int = 0) -> tokens_pb2.Generate:
    image = tokens_pb2.Image(data=b"x" * size, name="n" * name)
    turn = tokens_pb2.Message(role="user", parts=[tokens_pb2.Part(image=image)])
    return tokens_pb2.Generate(chat=tokens_pb2.Chat(messages=[turn] * count))


def recordings(count: int, size: int = 1) -> tokens_pb2.Generate:
    sound = tokens_pb2.Sound(data=b"x" * size)
    turn = tokens_pb2.Message(role="user", parts=[tokens_pb2.Part(sound=sound)])
    return tokens_pb2.Generate(chat=tokens_pb2.Chat(messages=[turn] * count))


def parts(count: int, size: int = 1) -> tokens_pb2.Generate:
    turn = tokens_pb2.Message(role="user", parts=[tokens_pb2.Part(text="x" * size)] * count)
    return tokens_pb2.Generate(chat=tokens_pb2.Chat(messages=[turn]))


def items(count: int, size: int = 1) -> multimodal_pb2.GenerateRpcRequest:
    item = multimodal_pb2.DataItem(text="x" * size)
    request = multimodal_pb2.GenerateRequest(items=[item] * count)
    return multimodal_pb2.GenerateRpcRequest(request=request)


def scored(size: int) -> multimodal_pb2.ScoreRpcRequest:
    image = multimodal_pb2.DataItem(image_bytes=b"x" * size)
    request = multimodal_pb2.ScoreRequest(prefix_items=[image])
    return multimodal_pb2.ScoreRpcRequest(request=request)


def extra(names: int = 0, numbers: int = 0, text: int = 0, key: int = 0) -> common_pb2.ExtraInputs:
    tensor = {"eos_id": common_pb2.Tensor(values=[1.0] * numbers)} if numbers else {}
    strings = {"s": "x" * text} if text else {}
    items = {str(i): 1.0 for i in range(names)} | ({"k" * key: 1.0} if key else {})
    return common_pb2.ExtraInputs(items=items, tensors=tensor, strings=strings)


def embed(*counts: int) -> tokens_pb2.EmbedRequest:
    lists = [tokens_pb2.Tokens(ids=[1] * count) for count in counts]
    return tokens_pb2.EmbedRequest(inputs=[tokens_pb2.EmbedInput(tokens=each) for each in lists])


CASES: list[tuple[Callable[[Any], None], Make, int, str]] = [
    (check_generate, lambda n: tokens_pb2.Generate(model_key="m" * n), MODEL_BYTES, "model_key"),
    (check_generate, lambda n: tokens_pb2.Generate(request_id="m" * n), LABEL_BYTES, "request_id"),
    (check_generate, lambda n: tokens_pb2.Generate(text="m" * n), TEXT_BYTES, "prompt"),
    (
        check_generate,
        lambda n: tokens_pb2.Generate(tokens=tokens_pb2.Tokens(ids=[1] * n)),
        TOKEN_IDS,
        "prompt",
    ),
    (check_generate, lambda n: tokens_pb2.Generate(chat=chat(n)), 4096, "messages"),
    (
        check_generate,
        lambda n: tokens_pb2.Generate(chat=chat(1, role=n)),
        64,
        "messages[0].role",
    ),
    (
        check_generate,
        lambda n: tokens_pb2.Generate(chat=chat(1, content=n)),
        TEXT_BYTES,
        "messages[0].content",
    ),
    (check_generate, lambda n: stop(n, 1), 16, "stop"),
    (check_generate, lambda n: stop(1, n), 1024, "stop"),
    (
        check_generate,
        lambda n: tokens_pb2.Generate(sampling=tokens_pb2.Sampling(stop_token_ids=[1] * n)),
        128,
        "stop_token_ids",
    ),
    (check_token, lambda n: tokens_pb2.Generate(token="t" * n), 4096, "token"),
    (check_tokenize, lambda n: tokens_pb2.TokenizeRequest(text="m" * n), TEXT_BYTES, "prompt"),
    (check_tokenize, lambda n: tokens_pb2.TokenizeRequest(chat=chat(n)), 4096, "messages"),
    (check_detokenize, lambda n: tokens_pb2.DetokenizeRequest(ids=[1] * n), TOKEN_IDS, "tokens"),
    (check_embed, lambda n: embed(*[1] * n), 2048, "input"),
    (check_embed, lambda n: embed(n // 2, n - n // 2), TOKEN_IDS, "input"),
    (check_question, lambda n: lm_pb2.GenerateRequest(text="t" * n), TEXT_BYTES, "text"),
    (check_question, lambda n: lm_pb2.EmbedRequest(model_key="t" * n), MODEL_BYTES, "model_key"),
    (
        check_question,
        lambda n: lm_pb2.GenerateRequest(extra_inputs=extra(names=n)),
        128,
        "extra_inputs",
    ),
    (
        check_question,
        lambda n: lm_pb2.GenerateRequest(extra_inputs=extra(numbers=n)),
        128,
        "extra_inputs.eos_id",
    ),
    (
        check_question,
        lambda n: lm_pb2.GenerateRequest(extra_inputs=extra(text=n)),
        LABEL_BYTES,
        "extra_inputs.s",
    ),
    (
        check_question,
        lambda n: lm_pb2.GenerateRequest(extra_inputs=extra(key=n)),
        LABEL_BYTES,
        "extra_inputs",
    ),
    (check_score, lambda n: lm_pb2.ScoreRequest(prefix="t" * n), TEXT_BYTES, "prefix"),
    (check_score, lambda n: lm_pb2.ScoreRequest(suffix=["t"] * n), 1024, "suffix"),
    (check_score, lambda n: lm_pb2.ScoreRequest(suffix=["t" * n]), TEXT_BYTES, "suffix"),
    (check_generate, pictures, IMAGES, "messages"),
    (check_generate, lambda n: pictures(1, n), IMAGE_BYTES, "messages[0].content[0]"),
    (check_generate, lambda n: pictures(1, 1, n), LABEL_BYTES, "messages[0].content[0].name"),
    (check_generate, recordings, IMAGES, "messages"),
    (check_generate, lambda n: recordings(1, n), IMAGE_BYTES, "messages[0].content[0]"),
    (check_generate, parts, 1024, "messages[0].content"),
    (check_generate, lambda n: parts(1, n), TEXT_BYTES, "messages[0].content[0]"),
    (check_items, items, 1024, "items"),
    (check_items, lambda n: items(1, n), TEXT_BYTES, "items[0].text"),
    (check_items, scored, IMAGE_BYTES, "prefix_items[0].image_bytes"),
    (check_custom, lambda n: custom_pb2.CustomRequest(request=b"t" * n), 32 << 20, "request"),
    (check_custom, lambda n: custom_pb2.CustomRequest(method_name="t" * n), 512, "method_name"),
]


@each_case("check, make, bound, param", CASES)
def test_a_field_passes_at_its_bound_and_is_refused_above(
    check: Callable[[Any], None], make: Make, bound: int, param: str
) -> None:
    check(make(bound))
    with pytest.raises(InvalidRequest, match=f"; at most {bound} are allowed") as caught:
        check(make(bound + 1))
    assert caught.value.param == param
    assert str(bound + 1) in caught.value.text


def test_images_of_many_messages_are_bounded_together() -> None:
    half = IMAGE_BYTES // 2
    check_generate(pictures(2, half))
    with pytest.raises(InvalidRequest, match="together: send smaller or fewer ones") as caught:
        check_generate(pictures(2, half + 1))
    assert caught.value.param == "messages"


def test_the_stream_and_tokenize_share_their_bounds() -> None:
    for name in ("prompt", "messages", "messages.role", "messages.content", "model_key"):
        assert field(RequestRoute.STREAM, name) == field(RequestRoute.TOKENIZE, name)
