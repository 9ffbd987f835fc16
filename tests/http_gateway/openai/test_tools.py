"""Tools of OpenAI's body: read, refused by name, and their calls in replies and streams."""

from __future__ import annotations

import json
from typing import Any

import pytest

from http_gateway.openai.events import ChatEvents
from http_gateway.openai.reply import Head, Transcript, chat_body, completion_body, usage, usage_of
from http_gateway.openai.reply_schema import Shape
from http_gateway.openai.tools import ChosenTools, read_choice
from sax.chat import Tool
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.types import AnswerFormat, ChatOptions, HypothesisText, TokenChunk, TokenLogprob
from tests.each_case import each_case
from tests.http_gateway.openai.test_schema import chat

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
HEAD = Head("id-1", 1700000000, "m")
SHAPE = Shape(tools=("get_weather",))
QWEN = AnswerFormat("hermes", "think", True)
TEXT = (
    "Hm.\n</think>\n\nI look.\n<tool_call>\n"
    '{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
)


def test_tools_and_their_choice_are_read() -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    options = chat(tools=[WEATHER], tool_choice=named, parallel_tool_calls=False).options
    assert options == ChatOptions(
        tools=(Tool("get_weather", "", json.dumps(SCHEMA)),),
        tool_choice="function",
        tool_name="get_weather",
        parallel_tool_calls=False,
        divided=True,
    )
    strict = {"name": "f", "description": "Does it.", "parameters": None, "strict": True}
    function = {"type": "function", "function": strict}
    assert chat(tools=[function]).options.tools == (Tool("f", "Does it.", "", True),)
    assert chat(tools=[WEATHER], tool_choice="none").shape().tools == ()
    assert chat(tools=[WEATHER]).shape().tools == ("get_weather",)


def test_variables_of_the_template_are_sent_as_json() -> None:
    request = chat(chat_template_kwargs={"enable_thinking": False}, reasoning_effort="low")
    assert json.loads(request.options.chat_template_kwargs) == {
        "enable_thinking": False,
        "reasoning_effort": "low",
    }
    assert chat(chat_template_kwargs={}).options == ChatOptions(divided=True)
    assert not chat(include_reasoning=False).shape().include_reasoning


def test_a_last_message_may_be_continued() -> None:
    options = chat(continue_final_message=True, add_generation_prompt=False).options
    assert (options.continue_final_message, options.add_generation_prompt) == (True, False)


@each_case("fields, param", [
    ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"tools": [{"function": {"name": "f", "parameters": []}}]},
     "tools[0].function.parameters"),
    ({"tools": [{"function": {"name": "f", "strict": 1}}]}, "tools[0].function.strict"),
    ({"tools": [{"function": {"name": "f", "description": "x" * 40_000}}]},
     "tools[0].function.description"),
    ({"tools": [{"function": {"name": "f", "parameters": {"a": "x" * 70_000}}}]},
     "tools[0].function.parameters"),
    ({"tools": [WEATHER] * 513}, "tools"),
    ({"tools": [{"function": {"name": f"f{n}", "parameters": {"a": "x" * 60_000}}}
                for n in range(20)]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "any", "tools": [WEATHER]}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ({"add_generation_prompt": True, "continue_final_message": True},
     "continue_final_message"),
    ({"reasoning_effort": "most"}, "reasoning_effort"),
    ({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}},
     "reasoning_effort"),
    ({"chat_template_kwargs": {"a": "x" * 20_000}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"a": ["x" * 5_000] * 4}}, "chat_template_kwargs"),
])  # fmt: skip
def test_what_is_wrong_is_refused_by_its_path(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(**fields)
    assert caught.value.param == param


@each_case(
    "fields, param",
    [
        ({"tools": [{"type": "mcp"}]}, "tools[0].type"),
        ({"tools": [{"function": {"name": "f", "mood": 1}}]}, "tools[0].function.mood"),
        ({"functions": [{"name": "f"}]}, "functions"),
    ],
)
def test_what_is_not_supported_is_refused_by_its_path(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        chat(**fields)
    assert caught.value.param == param


def streamed(text: str, format: AnswerFormat | None, shape: Shape = SHAPE) -> list[dict[str, Any]]:
    """The choices of a stream of one character at a time."""
    events = ChatEvents(HEAD, 0, shape)
    chunks = [TokenChunk(each, (n,)) for n, each in enumerate(text)]
    chunks[0] = TokenChunk(text[0], (0,), answer_format=format, seed=1)
    chunks.append(TokenChunk("", (), finish_reason="stop"))
    written = b"".join(map(events, chunks)).decode().split("\n\n")[:-1]
    return [json.loads(line[6:])["choices"][0] for line in written]


def replied(text: str, format: AnswerFormat | None, shape: Shape = SHAPE) -> dict[str, Any]:
    transcript = Transcript(shape=shape)
    transcript.add(TokenChunk(text, answer_format=format, finish_reason="stop"))
    return json.loads(chat_body(HEAD, [transcript], usage_of(1, 1, 0), shape))["choices"][0]


def test_a_reply_tells_how_it_breaks_its_schema_and_how_much_was_reasoning() -> None:
    transcript = Transcript()
    ends = {"finish_reason": "stop", "completion_tokens": 5, "reasoning_tokens": 2}
    transcript.add(TokenChunk("[1,1]", schema_violation="$: x", **ends))  # pyright: ignore[reportArgumentType]
    counts = usage([transcript], 1)
    for body in (chat_body, completion_body):
        reply = json.loads(body(HEAD, [transcript], counts, SHAPE))
        assert reply["choices"][0]["schema_violation"] == "$: x"
        assert reply["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}


def test_a_reply_has_reasoning_content_and_calls() -> None:
    choice = replied(TEXT, QWEN)
    (call,) = choice["message"].pop("tool_calls")
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": "I look.",
        "refusal": None,
        "reasoning_content": "Hm.",
        "reasoning": "Hm.",
    }
    assert call["id"].startswith("call_")
    assert {**call, "id": 0} == {
        "id": 0,
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'},
    }


def test_a_stream_adds_up_to_the_reply() -> None:
    choices = streamed(TEXT, QWEN)
    deltas = [choice["delta"] for choice in choices]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert "".join(delta.get("content", "") for delta in deltas) == "I look."
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Hm."
    assert "".join(delta.get("reasoning", "") for delta in deltas) == "Hm."
    assert (calls[0]["type"], calls[0]["function"]) == (
        "function",
        {"name": "get_weather", "arguments": ""},
    )
    assert "".join(call["function"]["arguments"] for call in calls) == '{"city": "Oslo"}'
    assert {call["index"] for call in calls} == {0}
    assert choices[-1]["finish_reason"] == "tool_calls"
    assert len(calls) > 5


def test_reasoning_may_be_left_out() -> None:
    shape = Shape(tools=("get_weather",), include_reasoning=False)
    assert "reasoning_content" not in replied(TEXT, QWEN, shape)["message"]
    assert not any("reasoning" in choice["delta"] for choice in streamed(TEXT, QWEN, shape))


def test_an_answer_without_a_format_is_all_content() -> None:
    assert replied(TEXT, None)["message"]["content"] == TEXT
    assert replied(TEXT, None)["finish_reason"] == "stop"


def test_an_answer_of_nothing_but_a_call_has_no_content() -> None:
    call = TEXT[TEXT.index("<tool_call>") :]
    assert replied(call, AnswerFormat("hermes"))["message"]["content"] is None


def test_log_probabilities_are_told_with_the_first_part_or_alone() -> None:
    events = ChatEvents(HEAD, 0, SHAPE)
    entry = TokenLogprob(7, "a", b"a", -1.0)
    events(TokenChunk("x", answer_format=QWEN, seed=1))
    written = events(TokenChunk("</thi", (7,), (entry,))).decode()
    (choice,) = json.loads(written[6:])["choices"]
    assert choice["delta"] == {"content": ""}
    assert [each["token"] for each in choice["logprobs"]["content"]] == ["a"]


def test_each_hypothesis_of_a_beam_search_is_divided() -> None:
    found = (HypothesisText(TEXT, (1,)), HypothesisText("No.</think>No.", (2,)))
    transcript = Transcript(shape=SHAPE)
    transcript.add(
        TokenChunk(TEXT, hypotheses=found, answer_format=QWEN, finish_reason="stop", seed=1)
    )
    first, second = transcript.searched(2)
    assert first.divided is not None
    assert second.divided is not None
    assert first.divided.calls
    assert second.divided.message() == {
        "content": "No.",
        "reasoning_content": "No.",
        "reasoning": "No.",
    }


TOOLS = (Tool("f"), Tool("g"), Tool("space__h"))
F = {"type": "function", "function": {"name": "f"}}
G = {"type": "custom", "custom": {"name": "g"}}


def allowed(mode: str, *tools: dict[str, Any], nested: bool) -> dict[str, Any]:
    own = {"mode": mode, "tools": [*tools]}
    return {"type": "allowed_tools", **({"allowed_tools": own} if nested else own)}


@each_case("value, nested, chosen", [
    (None, True, ChosenTools()),
    ("required", True, ChosenTools("required")),
    (F, True, ChosenTools("function", "f")),
    (G, True, ChosenTools("function", "g")),
    ({"type": "custom", "name": "g"}, False, ChosenTools("function", "g")),
    ({"type": "function", "name": "h", "namespace": "space"}, False,
     ChosenTools("function", "space__h")),
    (allowed("auto", F, F, nested=True), True, ChosenTools("auto", "", ("f",))),
    (allowed("required", {"type": "function", "name": "f"}, {"type": "custom", "name": "g"},
             nested=False), False, ChosenTools("required", "", ("f", "g"))),
])  # fmt: skip
def test_a_choice_is_read(value: object, nested: bool, chosen: ChosenTools) -> None:
    assert read_choice(value, TOOLS, nested=nested) == chosen


@each_case("value, param", [
    ("any", "tool_choice"),
    ({"type": "web_search"}, "tool_choice"),
    ({"type": "function", "name": "f"}, "tool_choice.function"),
    ({**F, "mood": 1}, "tool_choice.mood"),
    ({"type": "function", "function": {"name": "x"}}, "tool_choice"),
    ({"type": "allowed_tools"}, "tool_choice.allowed_tools"),
    (allowed("none", F, nested=True), "tool_choice.allowed_tools.mode"),
    (allowed("auto", nested=True), "tool_choice.allowed_tools.tools"),
    (allowed("auto", {"type": "mcp"}, nested=True), "tool_choice.allowed_tools.tools[0]"),
])  # fmt: skip
def test_a_wrong_choice_is_refused_by_its_path(value: object, param: str) -> None:
    with pytest.raises((InvalidRequest, UnsupportedParameter)) as caught:
        read_choice(value, TOOLS, nested=True)
    assert caught.value.param == param


def test_calls_of_a_chat_are_of_allowed_tools_only() -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in "fgh"]
    body = chat(tools=tools, tool_choice=allowed("auto", F, nested=True))
    assert [tool.name for tool in body.options.tools] == ["f", "g", "h"]
    assert body.options.allowed_tools == body.shape().tools == ("f",)
