"""Events of an answer that was divided, the same for every model and every API family."""

from __future__ import annotations

import msgspec


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
