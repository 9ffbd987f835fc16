"""Anthropic's messages: converted, or refused by the path of the part at fault."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from pydantic import TypeAdapter

from http_gateway.anthropic.bodies import MESSAGE
from http_gateway.anthropic.content import (
    AnthropicTurn,
    read_chat,
    read_system,
    read_turns,
    referenced_tools,
)
from http_gateway.images.image_link import ImageLink
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


def test_calls_of_servers_have_their_results_within_the_turn() -> None:
    def use(id: str) -> dict[str, Any]:
        fields = {"id": id, "name": "add", "server_name": "math", "input": {}}
        return {"type": "mcp_tool_use", **fields}

    given = {"type": "mcp_tool_result", "tool_use_id": "a", "content": [text("3")]}
    said = [text("So."), use("a"), use("b"), given, text("Then."), use("c")]
    found = read(user(text("1?")), {"role": "assistant", "content": said}, user(text("And?")))
    cut = "This call was not made."
    calls = [ToolCall(id, "math__add") for id in "abc"]
    assert found == (
        Message("user", "1?"),
        Message("assistant", "So.", tool_calls=tuple(calls[:2])),
        Message("tool", "3", "math__add", "a"),
        Message("tool", cut, "math__add", "b"),
        Message("assistant", "Then.", tool_calls=(calls[2],)),
        Message("tool", cut, "math__add", "c"),
        Message("user", "And?"),
    )


@each_case("kind", ["container_upload", "tool_use", "server_tool_use", None])
def test_a_block_that_is_not_supported_is_refused_by_its_type(kind: object) -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        read(user(text("x"), {"type": kind, "source": {}}))
    assert caught.value.param == "messages[0].content[1].type"
    assert str(kind) in caught.value.text


PDF = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}
PLAIN = {"type": "text", "media_type": "text/plain", "data": "It is far."}
DOCUMENT = {"type": "document", "source": PLAIN, "title": "Moon", "context": "An atlas"}
FOUND = {"type": "search_result", "source": "http://moon", "title": "Moon", "content": [text("a")]}
PIXEL = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
PICTURE = {"type": "image", "source": PIXEL}
LOADED = {"type": "tool_reference", "tool_name": "add"}


def test_documents_and_search_results_are_texts_between_tags() -> None:
    (said,) = read(user(DOCUMENT, FOUND, text("How far?")))
    document = (
        "<document>\n<title>Moon</title>\n<context>An atlas</context>\nIt is far.\n</document>"
    )
    found = (
        "<search_result>\n<source>http://moon</source>\n<title>Moon</title>\na\n</search_result>"
    )
    assert said == Message("user", f"{document}\n{found}\nHow far?")
    with pytest.raises(UnsupportedParameter, match="PDF.* their pages as image blocks") as caught:
        read(user({"type": "document", "source": PDF}))
    assert caught.value.param == "messages[0].content[0].source.type"


def test_a_result_holds_whatever_a_tool_found() -> None:
    held = [text("Here:"), PICTURE, DOCUMENT, FOUND, LOADED]
    *_, made = read(CALLED, user(result(content=held, is_error=True)))
    assert made.role == "tool"
    (image,) = made.images
    assert isinstance(image, ImageLink)
    assert image.url == "data:image/png;base64,AAAA"
    assert made.texts[:2] == ("Error:", "Here:")
    assert made.texts[-1] == "The tool add can be called now."
    assert any("It is far." in each for each in made.texts)


def test_tools_that_results_refer_to_are_told_in_order_and_once() -> None:
    turns = [CALLED, user(result(content=[LOADED, {**LOADED, "tool_name": "mul"}, LOADED]))]
    assert referenced_tools(READ.validate_python(turns)) == ("add", "mul")
    assert referenced_tools(READ.validate_python([user(text("x"))])) == ()


def system(said: str, **fields: Any) -> dict[str, Any]:
    return {"role": "system", "content": said, **fields}


def test_system_messages_before_all_others_belong_to_the_system_prompt() -> None:
    turns = READ.validate_python([system("Be brief."), user(text("Hi"))])
    assert read_chat("Be kind.", turns)[0] == Message("system", "Be kind.\nBe brief.")
    assert read_chat(None, turns)[0] == Message("system", "Be brief.")


def test_a_later_system_message_is_a_part_of_the_users_turn() -> None:
    said = read(user(text("Hi")), system("Be brief."))
    assert said == (Message("user", "Hi\n<system-reminder>\nBe brief.\n</system-reminder>"),)


def test_a_system_message_for_one_turn_is_gone_with_the_next() -> None:
    once = system("Be brief.", clear_at="next_user_message")
    assert "brief" in str(read(user(text("Hi")), once))
    answered = {"role": "assistant", "content": "Hello."}
    assert "brief" not in str(read(user(text("Hi")), once, answered, user(text("And?"))))
    kept = system("Be brief.", clear_at="never")
    assert "brief" in str(read(user(text("Hi")), kept, answered, user(text("And?"))))


def test_reasoning_that_another_server_hid_is_left_out() -> None:
    hidden = {"type": "redacted_thinking", "data": "x"}
    assert read({"role": "assistant", "content": [hidden, text("So.")]}) == (
        Message("assistant", "So."),
    )


def test_the_billing_header_is_no_part_of_the_prompt() -> None:
    header = text("x-anthropic-billing-header: cc_version=2.1.197.123; cch=0;")
    assert read_system([header, text("Be kind.")]) == (Message("system", "Be kind."),)


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
        [user(DOCUMENT, FOUND)],
        [user({"type": "document", "source": PDF})],
        [user({**DOCUMENT, "citations": {"enabled": True}})],
        [user({"type": "document", "source": {"type": "content", "content": [PICTURE]}})],
        [user({"type": "document", "source": {"type": "content", "content": [DOCUMENT]}})],
        [user({**FOUND, "content": [PICTURE]})],
        [CALLED, user(result(content=[LOADED, PICTURE, DOCUMENT, FOUND]))],
        [user(LOADED)],
        [user(text("x", cache_control={"type": "ephemeral", "ttl": "1h", "scope": "global"}))],
        [user(text("x", cache_control={"type": "ephemeral", "scope": 1}))],
        [user(text("x")), system("y", clear_at="never", output_config={})],
        [user(text("x")), system("y", clear_at="later")],
        [user(text("x")), system("y", output_config={"effort": "low"})],
    ],
)
def test_what_is_described_is_what_is_taken(turns: list[dict[str, Any]]) -> None:
    try:
        taken = bool(read(*turns))
    except SaxError:
        taken = False
    assert described(*turns) == taken
