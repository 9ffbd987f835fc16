"""A chat's answer in its parts, as OpenAI and vLLM write them: whole, or as deltas of a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from http_gateway.access.record import RequestRecord
from http_gateway.dialects.answer_parser import AnswerParser, divides
from http_gateway.dialects.events import (
    AnswerEvent,
    ArgumentsDelta,
    CallBegun,
    ContentDelta,
    ReasoningDelta,
)
from http_gateway.openai.shape import Shape
from sax.chat import AnswerFormat

Delta = dict[str, Any]


def parser_of(format: AnswerFormat | None, shape: Shape) -> AnswerParser | None:
    """Return a parser of one answer; None: its text is all content."""
    if format is None or not divides(format):
        return None
    if format.generic:
        RequestRecord.current().generic_tools = True
    return AnswerParser(format, shape.tools, parallel=shape.parallel_calls)


def deltas_of(events: Iterable[AnswerEvent], shape: Shape) -> Iterator[Delta]:
    """Return the deltas of a stream."""
    for event in events:
        match event:
            case ContentDelta(text):
                yield {"content": text}
            case ReasoningDelta(text) if shape.include_reasoning:
                yield _reasoning(text)
            case CallBegun(index, id, name):
                function = {"name": name, "arguments": ""}
                call = {"index": index, "id": id, "type": "function", "function": function}
                yield {"tool_calls": [call]}
            case ArgumentsDelta(index, text):
                yield {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
            case _:
                pass


def _reasoning(text: str) -> Delta:
    # DeepSeek's word and OpenRouter's: vLLM has had both.
    return {"reasoning_content": text, "reasoning": text}


class DividedText:
    """Collects the parts of one answer."""

    def __init__(self, parser: AnswerParser, shape: Shape) -> None:
        self._parser = parser
        self._shape = shape
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._arguments: list[list[str]] = []

    @property
    def calls(self) -> bool:
        return bool(self._calls)

    def push(self, text: str) -> None:
        self._add(self._parser.push(text))

    def finish(self) -> None:
        self._add(self._parser.finish())

    def message(self) -> dict[str, Any]:
        """Return the message's fields that depend on the text."""
        content = "".join(self._content)
        made: dict[str, Any] = {"content": content if content or not self._calls else None}
        if self._reasoning and self._shape.include_reasoning:
            made |= _reasoning("".join(self._reasoning))
        if self._calls:
            made["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": "".join(arguments)}}
                for call, arguments in zip(self._calls, self._arguments, strict=True)
            ]
        return made

    def _add(self, events: Iterable[AnswerEvent]) -> None:
        for event in events:
            match event:
                case ContentDelta(text):
                    self._content.append(text)
                case ReasoningDelta(text):
                    self._reasoning.append(text)
                case CallBegun(_, id, name):
                    self._calls.append({"id": id, "type": "function", "function": {"name": name}})
                    self._arguments.append([])
                case ArgumentsDelta(index, text):
                    self._arguments[index].append(text)
                case _:
                    pass


def divided_by(
    format: AnswerFormat | None, shape: Shape, whole: str | None = None
) -> DividedText | None:
    """Return the parts of an answer, empty or of a whole text; None: it is all content."""
    parser = parser_of(format, shape)
    if parser is None:
        return None
    made = DividedText(parser, shape)
    if whole is not None:
        made.push(whole)
        made.finish()
    return made


def finish_of(reason: str | None, *, called: bool) -> str | None:
    """Return OpenAI's finish reason: an answer that ends with calls says so."""
    return "tool_calls" if called and reason == "stop" else reason
