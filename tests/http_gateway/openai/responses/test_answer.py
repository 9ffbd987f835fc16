"""One answer of /v1/responses: its events, folded, are the whole reply, however the text is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_gateway.openai.divided_text import divided_by
from http_gateway.openai.reply_schema import Shape
from http_gateway.openai.responses.answer import ResponseAnswer
from http_gateway.openai.responses.open_item import ReasoningStyle, unsealed
from http_gateway.openai.responses.tools import CalledTool
from http_gateway.problems import Problem
from sax.chat import AnswerFormat, ReasoningParser, ToolParser
from sax.types import TokenChunk, TokenLogprob
from tests.each_case import each_case
from tests.sax.dialects import test_answer_parser as dialect

HEAD = {"id": "resp_1", "object": "response", "store": False}
HERMES = AnswerFormat(ToolParser.HERMES, ReasoningParser.THINK)
TOOLS = Shape(tools=("f", "g"))
TEXT = (
    "<think>Let me see.</think>Looking.\n"
    '<tool_call>{"name": "f", "arguments": {"a": [1, "</tool_call>"]}}</tool_call>\n'
    '<tool_call>{"name": "g", "arguments": {}}</tool_call>'
)


def chunks(
    pieces: list[str], format: AnswerFormat | None = None, end: str = "stop"
) -> list[TokenChunk]:
    return [
        TokenChunk(
            piece,
            (n,),
            finish_reason=end if n == len(pieces) - 1 else None,
            prompt_tokens=3 if n == 0 else 0,
            completion_tokens=n + 1,
            answer_format=format if n == 0 else None,
        )
        for n, piece in enumerate(pieces)
    ]


def streamed(answer: ResponseAnswer, said: list[TokenChunk]) -> list[dict[str, Any]]:
    written = b"".join([*map(answer.encode, said), answer.closing()]).decode()
    events: list[dict[str, Any]] = []
    for lines in written.split("\n\n")[:-1]:
        name, data = lines.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def folded(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a client that reads deltas only knows of the items."""
    items: list[dict[str, Any]] = []
    for event in events:
        match event["type"]:
            case "response.output_item.added":
                assert event["output_index"] == len(items)
                items.append({**event["item"], "text": ""})
            case "response.output_text.delta" | "response.reasoning_text.delta":
                assert event["item_id"] == items[-1]["id"]
                items[-1]["text"] += event["delta"]
            case "response.function_call_arguments.delta":
                assert event["item_id"] == items[-1]["id"]
                items[-1]["text"] += event["delta"]
            case _:
                pass
    return items


def written_by(kind: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A whole item of a type, and the events of its text, of an answer in single letters."""
    text = (
        "<think>Let me see.</think>"
        '<tool_call>{"name": "crm__note", "arguments": {"input": "a \\"b\\"\\n"}}</tool_call>'
        '<tool_call>{"name": "crm__find", "arguments": {}}</tool_call>'
    )
    called = {
        "crm__note": CalledTool("note", "crm", custom=True),
        "crm__find": CalledTool("find", "crm"),
    }
    answer = ResponseAnswer(
        HEAD, Shape(tools=(*called,)), called, ReasoningStyle(summary=True, sealed=True)
    )
    events = streamed(answer, chunks([*text], HERMES))
    (item,) = [each for each in events[-1]["response"]["output"] if each["type"] == kind]
    return item, [each for each in events if each.get("item_id") == item["id"]]


def test_reasoning_is_told_as_its_summary_and_kept_sealed():
    item, events = written_by("reasoning")
    assert (item["summary"], item["content"]) == (
        [{"type": "summary_text", "text": "Let me see."}],
        [],
    )
    assert unsealed(item["encrypted_content"]) == "Let me see."
    assert {event["type"].removeprefix("response.reasoning_summary_") for event in events} == {
        *("part.added", "text.delta", "text.done", "part.done")
    }
    assert {event["summary_index"] for event in events} == {0}


def test_a_call_of_a_custom_tool_tells_its_input():
    item, events = written_by("custom_tool_call")
    assert (item["name"], item["namespace"], item["input"]) == ("note", "crm", 'a "b"\n')
    *deltas, done = events
    assert done["type"] == "response.custom_tool_call_input.done"
    assert len(deltas) > 3
    assert "".join(delta["delta"] for delta in deltas) == done["input"] == item["input"]


def test_a_call_of_a_namespace_has_the_name_of_its_tool():
    item, events = written_by("function_call")
    assert (item["name"], item["namespace"], item["arguments"]) == ("find", "crm", "{}")
    assert events[-1]["name"] == "find"


@each_case("content", ["", "x", "sax1.", "sax1.???", "sax1.gA=="])
def test_what_another_server_sealed_is_not_read(content: str):
    assert unsealed(content) == ""


def plain(item: dict[str, Any]) -> tuple[str, str, str]:
    """The type of a whole item, its function and its text."""
    if item["type"] == "function_call":
        return "function_call", item["name"], item["arguments"]
    return item["type"], "", item["content"][0]["text"]


@st.composite
def cut(draw: st.DrawFn) -> list[str]:
    marks = sorted(draw(st.sets(st.integers(1, len(TEXT) - 1), max_size=40)))
    return [TEXT[a:b] for a, b in zip([0, *marks], [*marks, len(TEXT)], strict=True)]


@given(pieces=cut(), end=st.sampled_from(["stop", "length"]))
def test_streaming_equals_not_streaming(pieces: list[str], end: str):
    said = chunks(pieces, HERMES, end)
    events = streamed(ResponseAnswer(HEAD, TOOLS), said)
    whole = ResponseAnswer(HEAD, TOOLS)
    for chunk in said:
        whole.read(chunk)
    kept = whole.whole()
    last = events[-1]["response"]
    assert [plain(item) for item in last["output"]] == [plain(item) for item in kept["output"]]
    assert [plain(item) for item in kept["output"]] == [
        ("reasoning", "", "Let me see."),
        ("message", "", "Looking."),
        ("function_call", "f", '{"a": [1, "</tool_call>"]}'),
        ("function_call", "g", "{}"),
    ]
    assert [item["text"] for item in folded(events)] == [plain(i)[2] for i in kept["output"]]
    assert [item["id"] for item in folded(events)] == [item["id"] for item in last["output"]]
    assert last["usage"] == kept["usage"]
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    assert last["status"] == ("completed" if end == "stop" else "incomplete")


SAMPLES = [
    (HERMES, f"<think>Hm.</think>I look.\n\n{dialect.HERMES}\n{dialect.HERMES}\nDone. "),
    (AnswerFormat("llama3"), f"Well <|python_tag|>{dialect.LLAMA}; {dialect.LLAMA}"),
    (AnswerFormat("mistral"), f"Well. {dialect.MISTRAL_NEW}{dialect.MISTRAL_NEW}"),
    (AnswerFormat("gemma"), dialect.GEMMA),
    (AnswerFormat("deepseek"), f"Yes.{dialect.V3}"),
    (AnswerFormat("gpt_oss", "gpt_oss"), dialect.HARMONY),
    (AnswerFormat("none", "think", reasoning_open=True), "Why?</think> Because."),
    (AnswerFormat("hermes"), "<tool_call> is no call"),
]


@given(data=st.data(), sample=st.sampled_from(SAMPLES))
def test_every_dialect_says_what_it_says_in_a_chat(
    data: st.DataObject, sample: tuple[AnswerFormat, str]
):
    format, text = sample
    shape = Shape(tools=("get_weather",))
    marks = sorted(data.draw(st.sets(st.integers(1, len(text) - 1), max_size=30)))
    pieces = [text[a:b] for a, b in zip([0, *marks], [*marks, len(text)], strict=True)]
    events = streamed(ResponseAnswer(HEAD, shape), chunks(pieces, format))
    output = events[-1]["response"]["output"]
    divided = divided_by(format, shape, text)
    assert divided is not None
    chat = divided.message()
    told = [plain(item) for item in output]
    assert "".join(text for kind, _, text in told if kind == "message") == (chat["content"] or "")
    assert "".join(t for kind, _, t in told if kind == "reasoning") == chat.get("reasoning", "")
    assert [(name, arguments) for kind, name, arguments in told if kind == "function_call"] == [
        (call["function"]["name"], call["function"]["arguments"])
        for call in chat.get("tool_calls", ())
    ]
    assert [item["text"] for item in folded(events)] == [text for _, _, text in told]


def test_a_plain_answer_is_told_event_by_event():
    events = streamed(ResponseAnswer(HEAD, Shape()), chunks(["a", "b"]))
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert events[0]["response"]["output"] == []
    assert events[0]["response"]["usage"] is None
    assert events[-1]["response"]["usage"] == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 5,
    }


def test_the_first_event_shows_nothing_of_an_answer_that_comes_at_once():
    events = streamed(ResponseAnswer(HEAD, Shape()), chunks(["all"]))
    assert events[0]["response"]["output"] == []
    assert events[0]["response"]["status"] == "in_progress"


def test_an_answer_cut_short_leaves_its_last_item_incomplete():
    answer = ResponseAnswer(HEAD, TOOLS)
    for chunk in chunks(['<tool_call>{"name": "f", "arguments": {"a": '], HERMES, "length"):
        answer.read(chunk)
    whole = answer.whole()
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in whole["output"]] == ["incomplete"]


def test_an_answer_without_text_is_an_empty_message():
    answer = ResponseAnswer(HEAD, Shape())
    answer.read(TokenChunk("", (1,), finish_reason="stop", completion_tokens=1))
    assert [plain(item) for item in answer.whole()["output"]] == [("message", "", "")]


def test_how_an_answer_breaks_its_schema_is_told_in_the_whole_response():
    answer = ResponseAnswer(HEAD, TOOLS)
    answer.read(TokenChunk("[1,1]", finish_reason="stop", schema_violation="$: x"))
    assert answer.whole()["schema_violation"] == "$: x"


def test_tokens_of_reasoning_are_counted():
    answer = ResponseAnswer(HEAD, TOOLS)
    for chunk in chunks(["<think>", "a", "b", "</think>", "c", "d"], HERMES):
        answer.read(chunk)
    assert answer.whole()["usage"]["output_tokens_details"] == {"reasoning_tokens": 4}


def test_a_message_has_the_logprobs_of_its_own_tokens_only():
    def told(token: int) -> tuple[TokenLogprob, ...]:
        return (TokenLogprob(token, str(token), b"", -1.0),)

    texts = ["<think>a", "</think>", "c", "", "d", ""]
    said = [
        TokenChunk(
            text,
            logprobs=told(n),
            answer_format=HERMES if n == 0 else None,
            finish_reason="stop" if n == 5 else None,
            completion_tokens=n + 1,
        )
        for n, text in enumerate(texts)
    ]
    events = streamed(ResponseAnswer(HEAD, TOOLS), said)
    message = events[-1]["response"]["output"][1]["content"][0]
    assert [each["token"] for each in message["logprobs"]] == ["1", "2", "3", "4", "5"]
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [entry for event in deltas for entry in event["logprobs"]] == message["logprobs"]


@pytest.mark.parametrize(("status", "code"), [(429, "rate_limit_exceeded"), (503, "server_error")])
def test_a_broken_stream_ends_with_a_failed_response(status: int, code: str):
    answer = ResponseAnswer(HEAD, Shape())
    answer.encode(TokenChunk("a", (1,), completion_tokens=1))
    data = answer.failure(Problem(status, "lost", "x")).decode().split("\n")[1]
    event = json.loads(data.removeprefix("data: "))
    assert event["type"] == "response.failed"
    assert event["response"]["status"] == "failed"
    assert event["response"]["error"] == {"code": code, "message": "lost"}
