"""SaidRound: what the model said in one round of an answer, as messages of the chat."""

from __future__ import annotations

from collections.abc import Iterable

from sax.chat import Message, ToolCall
from sax.dialects.events import (
    AnswerEvent,
    ArgumentsDelta,
    CallBegun,
    ContentDelta,
    ReasoningDelta,
)
from sax.mcp.session import McpOutcome


class SaidRound:
    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[tuple[str, str, list[str]]] = []  # id, name and pieces of arguments
        self._results: dict[str, McpOutcome] = {}

    def add(self, events: Iterable[AnswerEvent]) -> None:
        for event in events:
            match event:
                case ContentDelta(text):
                    self._content.append(text)
                case ReasoningDelta(text):
                    self._reasoning.append(text)
                case CallBegun(_, id, name):
                    self._calls.append((id, name, []))
                case ArgumentsDelta(_, text):
                    self._calls[-1][2].append(text)
                case _:
                    pass

    def add_result(self, id: str, outcome: McpOutcome) -> None:
        self._results[id] = outcome

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(ToolCall(id, name, "".join(made) or "{}") for id, name, made in self._calls)

    def messages(self) -> tuple[Message, ...]:
        """Return the model's message, and the results of its calls in the order of these."""
        reasoning = "".join(self._reasoning)
        said = Message(
            "assistant", "".join(self._content), tool_calls=self.calls, reasoning=reasoning
        )
        results = (
            Message("tool", self._results[call.id].told, call.name, call.id)
            for call in self.calls
            if call.id in self._results
        )
        return (said, *results)
