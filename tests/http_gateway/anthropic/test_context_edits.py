"""Anthropic's context_management: what leaves a prompt, when, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from http_gateway.anthropic.context_edits import (
    CLEARED,
    AppliedEdit,
    ClearThinking,
    ClearToolUses,
    Edit,
    edited,
    read_edits,
)
from sax.chat import Message, ToolCall
from sax.errors import InvalidRequest
from tests.each_case import each_case

LONG = "r" * 100
TOOL_USES = "clear_tool_uses_20250919"


def called(*names: str) -> tuple[Message, ...]:
    """A conversation with a call of each tool, after some reasoning."""
    said = [Message("user", "Hi")]
    for n, name in enumerate(names):
        call = ToolCall(f"c{n}", name, '{"a": 1}')
        said.append(Message("assistant", "", tool_calls=(call,), reasoning=f"Hm {n}."))
        said.append(Message("tool", f"{LONG}{n}", name, f"c{n}"))
    return tuple(said)


def read(**edit: Any) -> Edit:
    (made,) = read_edits({"edits": [edit]})
    return made


async def characters(chat: tuple[Message, ...]) -> int:
    return sum(message.characters + len(message.reasoning) for message in chat)


def results(chat: tuple[Message, ...]) -> list[object]:
    return [message.content for message in chat if message.role == "tool"]


async def test_all_results_but_the_last_are_cleared() -> None:
    edit = read(type=TOOL_USES, trigger={"type": "tool_uses", "value": 2})
    same, none = await edited([edit], called("f", "f"), characters)
    assert (same, none) == (called("f", "f"), [])
    chat, (applied,) = await edited([edit], called(*"fffff"), characters)
    assert results(chat) == [CLEARED, CLEARED, f"{LONG}2", f"{LONG}3", f"{LONG}4"]
    assert applied.cleared_tool_uses == 2
    again, none = await edited([edit], chat, characters)
    assert (again, none) == (chat, [])


async def test_results_of_named_tools_stay_and_arguments_of_others_go() -> None:
    edit = ClearToolUses(trigger_tokens=0, keep=0, exclude=frozenset("f"), inputs=frozenset("g"))
    chat, _ = await edited([edit], called("f", "g", "h"), characters)
    assert results(chat) == [f"{LONG}0", CLEARED, CLEARED]
    arguments = [call.arguments for message in chat for call in message.tool_calls]
    assert arguments == ['{"a": 1}', "{}", '{"a": 1}']


async def test_too_little_is_not_worth_a_new_prompt() -> None:
    chat = tuple(Message("tool", "x" * 100, "f", f"c{n}") for n in range(3))
    freed = 3 * (100 - len(CLEARED))
    for least, made in ((freed, 1), (freed + 1, 0)):
        edit = ClearToolUses(trigger_tokens=0, keep=0, at_least=least)
        assert len((await edited([edit], chat, characters))[1]) == made


async def test_reasoning_of_earlier_turns_is_cleared() -> None:
    chat, applied = await edited([ClearThinking(1)], called(*"fff"), characters)
    assert [message.reasoning for message in chat if message.role == "assistant"] == [
        "",
        "",
        "Hm 2.",
    ]
    assert applied == [AppliedEdit("clear_thinking_20251015", 10, cleared_thinking_turns=2)]
    kept, none = await edited([ClearThinking(None)], called("f"), characters)
    assert (kept, none) == (called("f"), [])


def test_what_is_left_out_is_as_documented() -> None:
    assert read(type=TOOL_USES) == ClearToolUses(trigger_tokens=100_000, keep=3)
    assert read(type="clear_thinking_20251015") == ClearThinking(1)
    assert read(type="clear_thinking_20251015", keep={"type": "all"}) == ClearThinking(None)
    assert read_edits(None) == read_edits({}) == read_edits({"edits": []}) == ()


@each_case("edit, param", [
    ({"type": TOOL_USES, "keep": 3}, "keep"),
    ({"type": TOOL_USES, "keep": {"type": "tool_uses", "value": -1}}, "keep"),
    ({"type": TOOL_USES, "trigger": {"type": "hours", "value": 1}}, "trigger"),
    ({"type": TOOL_USES, "clear_at_least": {"type": "tool_uses", "value": 1}}, "clear_at_least"),
    ({"type": TOOL_USES, "exclude_tools": "f"}, "exclude_tools"),
    ({"type": TOOL_USES, "clear_tool_inputs": [1]}, "clear_tool_inputs"),
    ({"type": TOOL_USES, "mood": 1}, "mood"),
    ({"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 0}}, "keep"),
    ({"type": "compact_20260112", "trigger": 1}, "trigger"),
])  # fmt: skip
def test_what_is_wrong_is_refused_by_its_path(edit: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(**edit)
    assert caught.value.param == f"context_management.edits[0].{param}"
