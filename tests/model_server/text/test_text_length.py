"""A text that cannot fit is refused; one that fits never is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_server.text.text_length import (
    LEAST_BYTES,
    check_bytes,
    check_messages,
    check_pieces,
    most_bytes,
)
from model_server.text.tokenizer import ByteTokenizer
from sax.errors import PromptTooLong
from sax.types import Message

BYTES = ByteTokenizer(256)


@given(st.integers(1, 200_000), st.sampled_from(["x", "\u00e9", "\u4f60"]))
def test_a_text_of_as_many_tokens_as_the_context_passes(context: int, letter: str) -> None:
    text = letter * (context // len(letter.encode()))
    check_bytes(text, BYTES, context, "prompt")
    check_pieces(text, BYTES.encode, context, "prompt")
    check_messages([Message("", text[: len(text) - 8])], BYTES, context)


@given(st.integers(1, 200_000))
def test_more_bytes_than_the_bound_are_refused_with_both_numbers(context: int) -> None:
    most = most_bytes(BYTES, context)
    assert most >= LEAST_BYTES
    check_bytes("x" * most, BYTES, context, "prompt")
    with pytest.raises(PromptTooLong, match=f"^prefix has {most + 1} bytes, .* at most {most} "):
        check_bytes("x" * (most + 1), BYTES, context, "prefix")


def test_pieces_stop_at_the_one_that_shows_it() -> None:
    seen: list[int] = []

    def encode(text: str) -> list[int]:
        seen.append(len(text))
        return BYTES.encode(text)

    with pytest.raises(PromptTooLong, match="this model's maximum context length is 70000 tokens"):
        check_pieces("x" * 1_000_000, encode, 70_000, "prompt")
    assert sum(seen) < 110_000


def test_empty_messages_count() -> None:
    check_messages([Message("", "")] * 8_000, BYTES, 512)
    with pytest.raises(PromptTooLong) as caught:
        check_messages([Message("", "")] * 9_000, BYTES, 512)
    assert caught.value.param == "messages"
