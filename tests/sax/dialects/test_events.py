"""CollectedAnswer: one answer, joined from its events."""

from __future__ import annotations

from sax.chat import Message, ToolCall
from sax.dialects.events import (
    ArgumentsDelta,
    CallBegun,
    CallEnded,
    CollectedAnswer,
    ContentDelta,
    ReasoningDelta,
)


def test_events_in_pieces_make_up_one_answer() -> None:
    said = CollectedAnswer()
    said.add(
        [ReasoningDelta("Hm"), ReasoningDelta("."), ContentDelta("So"), CallBegun(0, "a", "f")]
    )
    said.add([ArgumentsDelta(0, '{"x"'), ArgumentsDelta(0, ": 1}"), CallEnded(0)])
    said.add([ContentDelta("."), CallBegun(1, "b", "g"), ArgumentsDelta(1, "{}"), CallEnded(1)])
    assert (said.content, said.reasoning) == ("So.", "Hm.")
    assert said.calls == (ToolCall("a", "f", '{"x": 1}'), ToolCall("b", "g", "{}"))


def test_a_call_that_has_no_arguments_yet_has_an_empty_object_as_a_turn() -> None:
    said = CollectedAnswer()
    said.add([CallBegun(0, "a", "f")])
    assert said.calls == (ToolCall("a", "f", ""),)
    assert said.message() == Message("assistant", "", tool_calls=(ToolCall("a", "f", "{}"),))
