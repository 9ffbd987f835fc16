"""Events of an answer that was divided, the same for every model and every API family, and the
answer that they make up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import msgspec

from sax.chat import Message, ToolCall


class ContentDelta(msgspec.Struct, frozen=True, gc=False):
    text: str


class ReasoningDelta(msgspec.Struct, frozen=True, gc=False):
    text: str


class CallBegun(msgspec.Struct, frozen=True, gc=False):
    index: int
    id: str
    name: str


class ArgumentsDelta(msgspec.Struct, frozen=True, gc=False):
    """A piece of a call's arguments: of JSON, as the model wrote it."""

    index: int
    text: str


class CallEnded(msgspec.Struct, frozen=True, gc=False):
    index: int


AnswerEvent = ContentDelta | ReasoningDelta | CallBegun | ArgumentsDelta | CallEnded


class CollectedAnswer:
    """Joins the events of one answer into its content, its reasoning and its calls."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[tuple[str, str, list[str]]] = []  # id, name and pieces of arguments

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
                case CallEnded():
                    pass

    @property
    def content(self) -> str:
        return "".join(self._content)

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls so far; arguments are "" where the model wrote none."""
        return tuple(ToolCall(id, name, "".join(pieces)) for id, name, pieces in self._calls)

    def message(self) -> Message:
        """Return the answer as a turn of its chat, in which arguments are `{}` for none."""
        calls = tuple(replace(call, arguments=call.arguments or "{}") for call in self.calls)
        return Message("assistant", self.content, tool_calls=calls, reasoning=self.reasoning)
