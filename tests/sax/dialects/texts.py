"""Texts of answers in every dialect, and what a parser makes of them, joined."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sax.chat import AnswerFormat
from sax.dialects.answer_parser import AnswerParser
from sax.dialects.events import (
    AnswerEvent,
    ArgumentsDelta,
    CallBegun,
    CallEnded,
    ContentDelta,
    ReasoningDelta,
)

TOOLS = ("get_weather", "add", "f")


class Divided(NamedTuple):
    """An answer, joined."""

    content: str
    reasoning: str
    calls: tuple[tuple[str, str], ...]  # names and arguments
    ended: int  # calls


def joined(events: Iterable[AnswerEvent]) -> Divided:
    content, reasoning = "", ""
    calls: list[list[str]] = []
    ended = 0
    for event in events:
        match event:
            case ContentDelta(text):
                content += text
            case ReasoningDelta(text):
                reasoning += text
            case CallBegun(index, _, name):
                assert index == len(calls) == ended
                calls.append([name, ""])
            case ArgumentsDelta(index, text):
                assert index == len(calls) - 1 == ended
                calls[index][1] += text
            case CallEnded(index):
                assert index == ended
                ended += 1
    return Divided(content, reasoning, tuple((name, text) for name, text in calls), ended)


def parsed(
    pieces: Sequence[str],
    format: AnswerFormat,
    *,
    tools: Sequence[str] = TOOLS,
    ids: list[str] | None = None,
    **options: Any,
) -> Divided:
    """ids: takes the ids of the calls."""
    numbers = itertools.count()
    parser = AnswerParser(format, tools, new_id=lambda: f"call_{next(numbers)}", **options)
    events = [event for piece in pieces for event in parser.push(piece)]
    events += parser.finish()
    if ids is not None:
        ids += [event.id for event in events if isinstance(event, CallBegun)]
    return joined(events)
