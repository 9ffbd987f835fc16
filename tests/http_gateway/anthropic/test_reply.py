"""Content blocks: a whole reply, and a stream that adds up to it wherever its text is cut."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from http_gateway.anthropic.reply import MessageAnswer
from http_gateway.openai.reply_schema import Shape
from sax.types import AnswerFormat, TokenChunk
from tests.each_case import each_case

SHAPE = Shape(tools=("get_weather",))
QWEN = AnswerFormat("hermes", "think", True)
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
TEXT = f"Hm.\n</think>\n\nI look.\n{CALL}"
PIECES = ("text", "thinking", "partial_json")


def answer(shape: Shape = SHAPE) -> MessageAnswer:
    return MessageAnswer("msg_1", "m", shape)


def chunks(
    texts: Iterable[str], format: AnswerFormat | None = QWEN, **last: Any
) -> list[TokenChunk]:
    pieces = [*texts]
    made = [
        TokenChunk(piece, (n,), prompt_tokens=9, cached_tokens=4, completion_tokens=n + 1,
                   answer_format=None if n else format)
        for n, piece in enumerate(pieces)
    ]  # fmt: skip
    ends = {"finish_reason": "stop", "completion_tokens": len(pieces), **last}
    first = {} if pieces else {"prompt_tokens": 9, "cached_tokens": 4, "answer_format": format}
    return [*made, TokenChunk("", (), **first, **ends)]


def whole(said: list[TokenChunk], shape: Shape = SHAPE) -> dict[str, Any]:
    made = answer(shape)
    for chunk in said:
        made.add(chunk)
    return json.loads(made.body())


def events(said: list[TokenChunk], shape: Shape = SHAPE) -> list[dict[str, Any]]:
    made = answer(shape)
    written = b"".join(map(made.encode, said)) + made.closing()
    framed = re.findall(r"event: (\w+)\ndata: (.*)\n\n", written.decode())
    found = [json.loads(data) for _, data in framed]
    assert [name for name, _ in framed] == [event["type"] for event in found]
    return found


def added_up(stream: list[dict[str, Any]]) -> dict[str, Any]:
    """The reply that a client makes of a stream."""
    reply: dict[str, Any] = {}
    inputs: dict[int, str] = {}
    for event in stream:
        match event["type"]:
            case "message_start":
                reply = event["message"]
            case "content_block_start":
                assert event["index"] == len(reply["content"])
                reply["content"].append(event["content_block"])
            case "content_block_delta":
                ((name, piece),) = ((n, p) for n, p in event["delta"].items() if n in PIECES)
                block = reply["content"][event["index"]]
                if name == "partial_json":
                    inputs[event["index"]] = inputs.get(event["index"], "") + piece
                else:
                    block[name] += piece
            case "message_delta":
                reply |= event["delta"] | {"usage": event["usage"]}
            case _:
                pass
    for index, text in inputs.items():
        reply["content"][index]["input"] = json.loads(text)
    return reply


def without_ids(reply: dict[str, Any]) -> dict[str, Any]:
    blocks = [{name: b[name] for name in b if name != "id"} for b in reply["content"]]
    return {**reply, "content": blocks}


def test_a_reply_has_reasoning_text_and_calls() -> None:
    reply = whole(chunks([TEXT]))
    assert reply["content"][2].pop("id").startswith("call_")
    assert reply == {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": ""},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "name": "get_weather", "input": {"city": "Oslo"}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 5,
            "output_tokens": 1,
            "cache_read_input_tokens": 4,
            "cache_creation_input_tokens": 0,
        },
    }


def test_a_stream_starts_pings_and_ends_as_anthropics() -> None:
    kinds = [event["type"] for event in events(chunks(["a", "b"], None))]
    assert kinds == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


@given(st.lists(st.integers(0, len(TEXT)), max_size=30), st.sampled_from([QWEN, None]))
def test_a_stream_adds_up_to_the_reply_wherever_it_is_cut(
    cuts: list[int], format: AnswerFormat | None
) -> None:
    edges = [0, *sorted(cuts), len(TEXT)]
    pieces = [TEXT[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    said = chunks(pieces, format)
    reply = without_ids(added_up(events(said)))
    assert reply == without_ids(whole(said))
    assert reply["content"] == without_ids(whole(chunks([TEXT], format)))["content"]


@each_case(
    "last, reason, sequence",
    [
        ({"finish_reason": "stop"}, "end_turn", None),
        ({"finish_reason": "stop", "stop_reason": 7}, "end_turn", None),
        ({"finish_reason": "stop", "stop_reason": "END"}, "stop_sequence", "END"),
        ({"finish_reason": "length"}, "max_tokens", None),
    ],
)
def test_the_reason_of_the_end_is_told(
    last: dict[str, Any], reason: str, sequence: str | None
) -> None:
    reply = whole(chunks(["a"], None, **last))
    assert (reply["stop_reason"], reply["stop_sequence"]) == (reason, sequence)


def test_how_an_answer_breaks_its_schema_is_told_at_its_end() -> None:
    said = chunks(["[1,1]"], None, finish_reason="stop", schema_violation="$: x")
    assert whole(said)["schema_violation"] == "$: x"
    *_, delta, _ = events(said)
    assert delta["delta"]["schema_violation"] == "$: x"


def test_reasoning_may_be_left_out() -> None:
    kinds = [
        block["type"]
        for block in whole(chunks([TEXT]), Shape(include_reasoning=False, tools=("get_weather",)))[
            "content"
        ]
    ]
    assert kinds == ["text", "tool_use"]


def test_input_that_was_cut_comes_as_a_text() -> None:
    cut = TEXT[: TEXT.index('"Oslo"') + 3]
    (call,) = whole(chunks([cut], finish_reason="length"))["content"][2:]
    assert call["input"] == {"INVALID_JSON": '{"city": "Os'}


def test_an_empty_answer_has_no_blocks() -> None:
    assert whole(chunks([], None))["content"] == []
    kinds = [event["type"] for event in events(chunks([], None))]
    assert kinds == ["message_start", "ping", "message_delta", "message_stop"]


def test_reasoning_that_is_not_to_be_shown_is_an_empty_block() -> None:
    said = chunks([TEXT])
    made = MessageAnswer("msg_1", "m", SHAPE, thinking_shown=False)
    for chunk in said:
        made.add(chunk)
    kinds = {block["type"]: block for block in json.loads(made.body())["content"]}
    assert kinds["thinking"]["thinking"] == ""
    assert kinds["text"]["text"]
