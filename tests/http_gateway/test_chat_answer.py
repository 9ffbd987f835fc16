"""One chat's answer as it comes: its parts and its counts."""

from __future__ import annotations

from http_gateway.chat_answer import INVALID_JSON, DividedAnswer, call_input, renamed
from http_gateway.openai.reply_schema import Shape
from sax.dialects.events import ContentDelta, ReasoningDelta
from sax.errors import InvalidRequest
from sax.types import AnswerFormat, TokenChunk
from tests.each_case import each_case

THINKS = AnswerFormat(reasoning="think", reasoning_open=True)


def test_an_answer_without_a_format_is_all_content() -> None:
    answer = DividedAnswer(Shape())
    assert answer.read(TokenChunk("<think>")) == [ContentDelta("<think>")]
    assert answer.read(TokenChunk("")) == []


def test_what_was_held_back_comes_with_the_last_chunk() -> None:
    answer = DividedAnswer(Shape())
    assert answer.read(TokenChunk("Hm", answer_format=THINKS)) == [ReasoningDelta("Hm")]
    assert answer.read(TokenChunk("</th")) == []
    assert answer.read(TokenChunk("", finish_reason="length")) == [ReasoningDelta("</th")]
    assert answer.finished


def test_reasoning_may_be_left_out() -> None:
    answer = DividedAnswer(Shape(include_reasoning=False))
    said = TokenChunk("Hm</think>So", answer_format=THINKS)
    assert answer.read(said) == [ContentDelta("So")]


def test_counts_are_those_of_the_last_chunks_that_told_them() -> None:
    answer = DividedAnswer(Shape())
    answer.read(TokenChunk("a", prompt_tokens=9, cached_tokens=4, completion_tokens=1))
    answer.read(TokenChunk("b", completion_tokens=2))
    assert not answer.finished
    answer.read(TokenChunk("", completion_tokens=3, finish_reason="stop", stop_reason="x"))
    counts = (answer.prompt_tokens, answer.cached_tokens, answer.completion_tokens)
    assert counts == (9, 4, 3)
    assert (answer.finish_reason, answer.stop_reason) == ("stop", "x")


def test_a_further_round_is_divided_anew_and_its_tokens_are_added() -> None:
    answer = DividedAnswer(Shape())
    ends = {"finish_reason": "stop", "reasoning_tokens": 1}
    answer.read(TokenChunk("Hm", prompt_tokens=9, cached_tokens=4, completion_tokens=2, **ends))
    answer.go_on()
    assert not answer.finished
    said = TokenChunk("Hm", answer_format=THINKS, prompt_tokens=12, completion_tokens=3, **ends)
    assert answer.read(said) == [ReasoningDelta("Hm")]
    counts = (answer.prompt_tokens, answer.cached_tokens, answer.completion_tokens)
    assert (counts, answer.reasoning_tokens) == ((21, 4, 5), 2)


def test_an_error_of_the_cell_is_told_by_the_familys_own_name() -> None:
    error = InvalidRequest("a.b is not supported", param="a.b")
    told = renamed(error, {"a.b": "thinking"})
    assert told.param == "thinking"
    assert told.text.startswith("thinking is not supported")
    assert "variable b" in told.text
    assert renamed(error, {"a": "thinking"}) is error


def test_an_object_is_read() -> None:
    assert call_input('{"a": [1]}') == {"a": [1]}
    assert call_input("") == {}


@each_case("text", ['{"a": ', "[1]", "{a: 1}", "[" * 100_000])
def test_what_is_none_stays_a_text(text: str) -> None:
    assert call_input(text) == {INVALID_JSON: text}
