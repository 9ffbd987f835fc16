import pytest

from http_gateway.openai.chat import to_messages
from http_gateway.openai.schema import ChatMessage
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.types import Message, ToolCall
from tests.each_case import each_case

CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'},
}


def turns(*messages: dict[str, object]) -> tuple[Message, ...]:
    return to_messages([ChatMessage.model_validate(message) for message in messages])


def test_text_and_lists_of_text_parts_become_turns():
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert turns(
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": ""},
    ) == (Message("system", "be brief"), Message("user", "one\ntwo"), Message("assistant", ""))


def test_a_developer_message_is_a_system_message():
    assert turns({"role": "developer", "content": "x"}) == (Message("system", "x"),)


def test_an_earlier_answer_can_be_sent_back_with_its_empty_fields():
    answer = {"role": "assistant", "content": "x", "refusal": None, "tool_calls": None}
    assert turns(answer) == (Message("assistant", "x"),)


def test_calls_and_their_results_are_kept():
    result: dict[str, object] = {
        "role": "tool",
        "content": "sunny",
        "tool_call_id": "call_1",
        "name": "get_weather",
    }
    asked: dict[str, object] = {
        "role": "assistant",
        "content": None,
        "tool_calls": [CALL],
        "reasoning": "Hm.",
    }
    call = ToolCall("call_1", "get_weather", '{"city": "Oslo"}')
    assert turns(asked, result) == (
        Message("assistant", "", tool_calls=(call,), reasoning="Hm."),
        Message("tool", "sunny", name="get_weather", tool_call_id="call_1"),
    )


def test_whoever_speaks_may_have_a_name() -> None:
    named = [{"role": role, "content": "x", "name": "bob"} for role in ("system", "user", "tool")]
    assert [turn.name for turn in turns(*named)] == ["bob"] * 3


def test_a_refusal_that_is_sent_back_is_what_the_assistant_said() -> None:
    part = {"type": "refusal", "refusal": "No."}
    alone, parts = {"content": None, "refusal": "No."}, {"content": [part]}
    for said in (alone, parts, {"content": "No.", "refusal": None}):
        assert turns({"role": "assistant", **said}) == (Message("assistant", "No."),)
    with pytest.raises(InvalidRequest, match="both there"):
        turns({"role": "assistant", "content": "Yes.", "refusal": "No."})


def test_a_call_whose_arguments_were_cut_is_sent_as_it_is() -> None:
    cut = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": "b'}}
    (turn,) = turns({"role": "assistant", "content": [], "tool_calls": [cut]})
    assert turn == Message("assistant", "", tool_calls=(ToolCall("1", "f", '{"a": "b'),))


@each_case(
    "message, param",
    [
        ({"role": "function", "content": "4", "name": "f"}, "messages[0].role"),
        ({"role": "user", "content": "x", "tool_call_id": "1"}, "messages[0].tool_call_id"),
        ({"role": "user", "content": "x", "tool_calls": [CALL]}, "messages[0].tool_calls"),
        ({"role": "user", "content": "x", "refusal": "no"}, "messages[0].refusal"),
        ({"role": "user", "content": "x", "mood": "good"}, "messages[0].mood"),
        (
            {"role": "assistant", "content": "x", "tool_calls": [{**CALL, "type": "mcp"}]},
            "messages[0].tool_calls[0].type",
        ),
        ({"role": "user", "content": [{"type": "video"}]}, "messages[0].content[0].type"),
        (
            {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {}}]},
            "messages[0].content[0].cache_control",
        ),
    ],
)
def test_what_would_have_to_be_ignored_is_refused_by_its_path(
    message: dict[str, object], param: str
):
    with pytest.raises(UnsupportedParameter) as caught:
        turns(message)
    assert caught.value.param == param


def test_a_file_of_a_document_is_refused_with_what_to_send_instead():
    with pytest.raises(UnsupportedParameter, match=r"PDF.* text part, or their pages") as caught:
        turns({"role": "user", "content": [{"type": "file", "file": {"file_id": "file-1"}}]})
    assert caught.value.param == "messages[0].content[0].type"


@each_case(
    "message, param",
    [
        ({"role": "robot", "content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        (
            {"role": "user", "content": [{"type": "input_audio"}]},
            "messages[0].content[0].input_audio",
        ),
        ({"role": "tool", "content": "4", "name": 3}, "messages[0].name"),
        ({"role": "assistant", "tool_calls": [{}]}, "messages[0].tool_calls[0].function"),
        ({"role": "assistant", "tool_calls": {}}, "messages[0].tool_calls"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        ({"role": "user", "content": []}, "messages[0].content"),
        ({"role": "user", "content": ["x"]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
    ],
)
def test_a_malformed_message_is_refused_by_its_path(message: dict[str, object], param: str):
    with pytest.raises(InvalidRequest) as caught:
        turns(message)
    assert caught.value.param == param
