"""Anthropic's messages: converted, or refused by the path of the part at fault."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from pydantic import TypeAdapter

from http_gateway.anthropic.bodies import MESSAGE
from http_gateway.anthropic.content import AnthropicTurn, read_system, read_turns
from sax.errors import InvalidRequest, SaxError, UnsupportedParameter
from sax.types import Message, ToolCall
from tests.each_case import each_case

READ = TypeAdapter(list[AnthropicTurn])
USE = {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}}
CALLED = {"role": "assistant", "content": [{"type": "text", "text": "So."}, USE]}
SCHEMA = MESSAGE.schema()["properties"]["messages"]


def text(said: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **fields}


def result(**fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "c1", **fields}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": [*blocks]}


def read(*turns: dict[str, Any]) -> tuple[Message, ...]:
    return read_turns(READ.validate_python([*turns]))


def described(*turns: dict[str, Any]) -> bool:
    return jsonschema.Draft202012Validator(SCHEMA).is_valid([*turns])


def test_texts_come_as_they_are_and_parts_on_lines() -> None:
    assert read({"role": "user", "content": "Hi"}) == (Message("user", "Hi"),)
    cached = text("a", cache_control={"type": "ephemeral", "ttl": "1h"}, citations=[])
    assert read(user(cached, text("b"))) == (Message("user", "a\nb"),)


def test_a_system_prompt_is_a_text_or_blocks() -> None:
    assert read_system("Be kind.") == (Message("system", "Be kind."),)
    assert read_system([text("Be"), text("kind.")]) == (Message("system", "Be\nkind."),)
    assert read_system(None) == read_system("") == read_system([]) == ()


def test_calls_results_and_reasoning_reach_the_template() -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    assistant = {"role": "assistant", "content": [thought, text("So."), USE]}
    failed = result(content=[text("no")], is_error=True)
    again = {**USE, "id": "c2"}
    second = {"role": "assistant", "content": [again]}
    other = result(tool_use_id="c2", content="3")
    found = read(user(text("1?")), assistant, user(failed, text("Go on")), second, user(other))
    call = ToolCall("c1", "add", '{"a": 1}')
    assert found == (
        Message("user", "1?"),
        Message("assistant", "So.", tool_calls=(call,), reasoning="Hm."),
        Message("tool", "Error: no", "add", "c1"),
        Message("user", "Go on"),
        Message("assistant", "", tool_calls=(ToolCall("c2", "add", '{"a": 1}'),)),
        Message("tool", "3", "add", "c2"),
    )


def test_turns_of_one_role_are_one() -> None:
    said = read(user(text("a")), user(text("b")), {"role": "assistant", "content": "c"})
    assert said == (Message("user", "a\nb"), Message("assistant", "c"))


@each_case("turns, param", [
    ([{"role": "robot", "content": "x"}], "messages[0].role"),
    ([{"role": "user", "content": []}], "messages[0].content"),
    ([{"role": "user", "content": 3}], "messages[0].content"),
    ([user(3)], "messages[0].content[0]"),
    ([user({"type": "text"})], "messages[0].content[0].text"),
    ([user(text("x", cache_control={"type": "eternal"}))],
     "messages[0].content[0].cache_control"),
    ([user(result(content="3"))], "messages[0].content[0].tool_use_id"),
    ([CALLED], "messages[0].content"),
    ([CALLED, user(result(is_error="yes"))], "messages[1].content[0].is_error"),
    ([{"role": "assistant", "content": [{**USE, "input": "{}"}]}],
     "messages[0].content[0].input"),
    ([{"role": "assistant", "content": [{**USE, "name": "a b"}]}],
     "messages[0].content[0].name"),
    ([{"role": "assistant", "content": [{**USE, "id": "x" * 600}]}],
     "messages[0].content[0].id"),
])  # fmt: skip
def test_what_is_wrong_is_refused_by_its_path(turns: list[Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(*turns)
    assert caught.value.param == param


@each_case("kind", ["document", "tool_use", "search_result", None])
def test_a_block_that_is_not_supported_is_refused_by_its_type(kind: object) -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        read(user(text("x"), {"type": kind, "source": {}}))
    assert caught.value.param == "messages[0].content[1].type"
    assert str(kind) in caught.value.text


def test_a_picture_in_a_result_is_refused() -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        read(CALLED, user(result(content=[{"type": "image"}])))
    assert caught.value.param == "messages[1].content[0].content[0].type"


@each_case(
    "turns",
    [
        [user(text("x", cache_control=None, citations=None))],
        [CALLED, user(result())],
        [CALLED, user(result(content=[], is_error=False))],
        [{"role": "system", "content": "x"}, {"role": "assistant", "content": "y"}],
        [{"role": "user", "content": None}],
        [user(text("x", citations=[{}]))],
        [user(text("x", mood=1))],
        [{"role": "user", "content": "x", "name": "ann"}],
        [{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}],
        [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}],
    ],
)
def test_what_is_described_is_what_is_taken(turns: list[dict[str, Any]]) -> None:
    try:
        taken = bool(read(*turns))
    except SaxError:
        taken = False
    assert described(*turns) == taken
