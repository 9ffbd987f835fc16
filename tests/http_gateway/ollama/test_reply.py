"""Ollama's replies: whole, and lines that add up to them wherever the text is cut."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_gateway.chat_answer import Stopwatch
from http_gateway.ollama.reply import Form, OllamaAnswer, chat_reply, text_reply
from http_gateway.openai.reply_schema import Shape
from sax.types import AnswerFormat, TokenChunk

SHAPE = Shape(tools=("f",))
QWEN = AnswerFormat("hermes", "think", True)
TEXT = (
    'Hm.\n</think>\n\nI look.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
)
TIMES = ("created_at", "total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


def answer(form: Form, shape: Shape = SHAPE) -> OllamaAnswer:
    """Its clock goes on by a second at each look; the request came at 0."""
    ticks: Iterator[int] = count(1)
    return OllamaAnswer(form, "m", shape, Stopwatch(lambda: next(ticks), 0))


def chunks(
    texts: Iterable[str], format: AnswerFormat | None = QWEN, reason: str = "stop"
) -> list[TokenChunk]:
    made = [
        TokenChunk(text, (n,), prompt_tokens=9, completion_tokens=n + 1,
                   answer_format=None if n else format)
        for n, text in enumerate(texts)
    ]  # fmt: skip
    return [*made, TokenChunk("", (), completion_tokens=len(made), finish_reason=reason)]


def whole(said: list[TokenChunk], form: Form = chat_reply, shape: Shape = SHAPE) -> dict[str, Any]:
    made = answer(form, shape)
    for chunk in said:
        made.add(chunk)
    return json.loads(made.body())


def lines(said: list[TokenChunk], form: Form = chat_reply) -> list[dict[str, Any]]:
    made = answer(form)
    written = b"".join(map(made.encode, said)) + made.closing()
    return [json.loads(line) for line in written.splitlines()]


def added_up(stream: list[dict[str, Any]]) -> dict[str, Any]:
    *_, last = stream
    message: dict[str, Any] = {"role": "assistant", "content": "", "thinking": "", "tool_calls": []}
    for line in stream:
        said = line["message"]
        for name in ("content", "thinking", "tool_calls"):
            message[name] += said.get(name, type(message[name])())
    return {**last, "message": {name: value for name, value in message.items() if value}}


def plain(reply: dict[str, Any]) -> dict[str, Any]:
    """Without times and ids, which differ from run to run."""
    for call in reply["message"].get("tool_calls", ()):
        call["id"] = ""
    kept = {name: value for name, value in reply.items() if name not in TIMES}
    message = {name: value for name, value in kept["message"].items() if value}
    return {**kept, "message": message}


def test_a_reply_has_thinking_content_and_calls() -> None:
    assert plain(whole(chunks([TEXT]))) == {
        "model": "m",
        "message": {
            "role": "assistant",
            "content": "I look.",
            "thinking": "Hm.",
            "tool_calls": [
                {"id": "", "function": {"name": "f", "arguments": {"a": 1}, "index": 0}},
                {"id": "", "function": {"name": "f", "arguments": {}, "index": 1}},
            ],
        },
        "done": True,
        "done_reason": "stop",
        "prompt_eval_count": 9,
        "eval_count": 1,
    }


def test_durations_are_nanoseconds_between_arrival_question_tokens_and_end() -> None:
    reply = whole(chunks(["a"], None))
    found = {name: reply[name] // 10**9 for name in TIMES[1:]}
    assert found == {
        "total_duration": 3,
        "load_duration": 1,
        "prompt_eval_duration": 1,
        "eval_duration": 1,
    }


@given(st.lists(st.integers(0, len(TEXT)), max_size=30), st.sampled_from([QWEN, None]))
def test_lines_add_up_to_the_reply_wherever_the_text_is_cut(
    cuts: list[int], format: AnswerFormat | None
) -> None:
    edges = [0, *sorted(cuts), len(TEXT)]
    said = chunks([TEXT[a:b] for a, b in zip(edges, edges[1:], strict=False)], format)
    reply = plain(added_up(lines(said)))
    assert reply == plain(whole(said))
    assert reply["message"] == plain(whole(chunks([TEXT], format)))["message"]


def test_only_the_last_line_is_done_and_counts() -> None:
    first, second, last = lines(chunks(["a", "b"], None))
    assert (first["message"]["content"], second["message"]["content"]) == ("a", "b")
    assert [line["done"] for line in (first, second, last)] == [False, False, True]
    assert "eval_count" not in first
    assert (last["message"]["content"], last["eval_count"]) == ("", 2)


def test_how_an_answer_breaks_its_schema_is_told_in_the_last_line() -> None:
    said = [TokenChunk("[1,1]", finish_reason="stop", schema_violation="$: x")]
    assert whole(said)["schema_violation"] == "$: x"
    assert lines(said)[-1]["schema_violation"] == "$: x"


def test_a_text_is_a_response() -> None:
    reply = whole(chunks(["Hm</think>So"], AnswerFormat(reasoning="think", reasoning_open=True)),
                  text_reply)  # fmt: skip
    assert (reply["response"], reply["thinking"]) == ("So", "Hm")
    assert "".join(line["response"] for line in lines(chunks(["a", "b"], None), text_reply)) == "ab"


@pytest.mark.parametrize(("reason", "told"), [("stop", "stop"), ("length", "length")])
def test_the_reason_of_the_end_is_told(reason: str, told: str) -> None:
    assert whole(chunks(["a"], None, reason))["done_reason"] == told


def test_a_call_that_was_cut_is_told_as_it_is() -> None:
    cut = TEXT[: TEXT.index(": 1}}") + 2]
    (call,) = whole(chunks([cut], reason="length"))["message"]["tool_calls"]
    assert call["function"]["arguments"] == {"INVALID_JSON": '{"a": '}
