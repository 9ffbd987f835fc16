"""Items as messages: what belongs to one turn of the assistant is one message."""

from typing import Any

import pytest

from http_gateway.openai.responses.conversation import to_conversation
from http_gateway.openai.responses.open_item import sealed
from sax.chat import Message, ToolCall
from sax.errors import InvalidRequest, UnsupportedParameter
from tests.each_case import each_case

ASKED = {"role": "user", "content": "Weather?"}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "Sunny"}
THOUGHT = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "Hm."}],
}


def test_instructions_come_first():
    assert to_conversation("Be brief.", [{"role": "developer", "content": "x"}, ASKED]) == (
        Message("system", "Be brief."),
        Message("system", "x"),
        Message("user", "Weather?"),
    )


def test_a_turn_with_reasoning_text_and_calls_is_one_message():
    said = {
        "type": "message",
        "id": "msg_1",
        "status": "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Look.", "annotations": [], "logprobs": [{}]}],
    }
    second = {**CALL, "call_id": "c2"}
    assert to_conversation("", [ASKED, THOUGHT, said, CALL, second, OUTPUT]) == (
        Message("user", "Weather?"),
        Message(
            "assistant",
            "Look.",
            tool_calls=(ToolCall("c1", "f", '{"a": 1}'), ToolCall("c2", "f", '{"a": 1}')),
            reasoning="Hm.",
        ),
        Message("tool", "Sunny", name="f", tool_call_id="c1"),
    )


def test_calls_after_an_output_are_a_new_turn():
    second = {**CALL, "call_id": "c2"}
    made = to_conversation("", [CALL, OUTPUT, second])
    assert [message.role for message in made] == ["assistant", "tool", "assistant"]


def test_reasoning_that_nothing_follows_is_kept():
    assert to_conversation("", [THOUGHT, ASKED]) == (
        Message("assistant", "", reasoning="Hm."),
        Message("user", "Weather?"),
    )


def test_parts_of_text_are_joined_as_those_of_a_chat():
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert to_conversation("", [{"role": "user", "content": parts}]) == (Message("user", "a\nb"),)


def test_an_output_may_answer_a_call_of_an_earlier_response():
    made = to_conversation("", [OUTPUT], earlier=[ASKED, CALL])
    assert made[-1] == Message("tool", "Sunny", name="f", tool_call_id="c1")


def test_reasoning_comes_from_its_content_else_sealed_else_from_its_summary():
    summary = [{"type": "summary_text", "text": "S"}]
    content = [{"type": "reasoning_text", "text": "C"}]
    for given, read in (
        ({"summary": summary, "content": content, "encrypted_content": sealed("E")}, "C"),
        ({"summary": summary, "encrypted_content": sealed("E")}, "E"),
        ({"summary": summary, "encrypted_content": "of another server"}, "S"),
        ({"encrypted_content": "of another server"}, ""),
    ):
        made = to_conversation(
            "", [{"type": "reasoning", **given}, {"role": "user", "content": "x"}]
        )
        assert [turn.reasoning for turn in made if turn.role == "assistant"] == [read][: bool(read)]


def test_calls_of_custom_tools_and_of_namespaces_have_the_names_that_models_call():
    custom = {
        "type": "custom_tool_call",
        "call_id": "c",
        "name": "note",
        "input": "a",
        "namespace": "crm",
    }
    output = {"type": "custom_tool_call_output", "call_id": "c", "output": "x"}
    asked, told = to_conversation("", [custom, output])
    assert asked.tool_calls == (ToolCall("c", "crm__note", '{"input": "a"}'),)
    assert told == Message("tool", "x", name="crm__note", tool_call_id="c")


def test_a_refusal_and_a_phase_that_are_sent_back_are_read():
    part = {"type": "refusal", "refusal": "No."}
    said = {"role": "assistant", "phase": "final_answer", "content": [part]}
    assert to_conversation("", [said]) == (Message("assistant", "No."),)


@each_case(
    "item, param",
    [
        ({"type": "item_reference", "id": "x"}, "input[0].type"),
        ({"role": "tool", "content": "x"}, "input[0].role"),
        ({"role": "user"}, "input[0].content"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[0].content[0].text"),
        ({"role": "user", "content": "x", "nope": 1}, "input[0].nope"),
        ({"role": "user", "content": "x", "id": 7}, "input[0].id"),
        ({**CALL, "call_id": ""}, "input[0].call_id"),
        ({**CALL, "name": "no name"}, "input[0].name"),
        ({**CALL, "arguments": [1]}, "input[0].arguments"),
        (OUTPUT, "input[0].call_id"),
        ({**THOUGHT, "encrypted_content": 1}, "input[0].encrypted_content"),
        ({**THOUGHT, "summary": "x"}, "input[0].summary"),
    ],
)
def test_what_is_wrong_is_refused_by_its_path(item: dict[str, Any], param: str):
    with pytest.raises((InvalidRequest, UnsupportedParameter)) as refused:
        to_conversation("", [item])
    assert refused.value.param == param


def test_a_file_of_a_document_is_refused_with_what_to_send_instead():
    item = {"role": "user", "content": [{"type": "input_file", "file_id": "file-1"}]}
    with pytest.raises(UnsupportedParameter, match=r"PDF.* input_text, or their pages") as refused:
        to_conversation("", [item])
    assert refused.value.param == "input[0].content[0].type"
