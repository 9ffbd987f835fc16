"""A chat's answer in its parts, as OpenAI and vLLM write them: whole, or as deltas of a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from http_gateway.openai.custom_tools import CustomInput
from http_gateway.openai.reply_schema import Shape
from sax.chat import AnswerFormat, ToolCall
from sax.dialects.answer_parser import AnswerParser, divides
from sax.dialects.events import (
    AnswerEvent,
    ArgumentsDelta,
    CallBegun,
    CallEnded,
    CollectedAnswer,
    ContentDelta,
    ReasoningDelta,
)

Delta = dict[str, Any]


def parser_of(format: AnswerFormat | None, shape: Shape) -> AnswerParser | None:
    """Return a parser of one answer; None: its text is all content."""
    if format is None or not divides(format):
        return None
    return AnswerParser(format, shape.tools, parallel=shape.parallel_calls)


class Deltas:
    """Makes the deltas of one choice's stream."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._inputs: dict[int, CustomInput] = {}  # of calls of custom tools

    def of(self, events: Iterable[AnswerEvent]) -> Iterator[Delta]:
        for event in events:
            match event:
                case ContentDelta(text):
                    yield {"content": text}
                case ReasoningDelta(text) if self._shape.include_reasoning:
                    yield _reasoning(text)
                case CallBegun(index, id, name):
                    yield self._begun(index, id, name)
                case ArgumentsDelta(index, text):
                    yield from self._arguments(index, text)
                case CallEnded(index) if index in self._inputs:
                    yield from self._input(index, self._inputs[index].finish())
                case _:
                    pass

    def _begun(self, index: int, id: str, name: str) -> Delta:
        call: Delta = {"index": index, "id": id}
        if name in self._shape.custom_tools:
            self._inputs[index] = CustomInput()
            call |= {"type": "custom", "custom": {"name": name, "input": ""}}
        else:
            call |= {"type": "function", "function": {"name": name, "arguments": ""}}
        return {"tool_calls": [call]}

    def _arguments(self, index: int, text: str) -> Iterator[Delta]:
        if index in self._inputs:
            yield from self._input(index, self._inputs[index].push(text))
        else:
            yield {"tool_calls": [{"index": index, "function": {"arguments": text}}]}

    def _input(self, index: int, text: str) -> Iterator[Delta]:
        if text:
            yield {"tool_calls": [{"index": index, "custom": {"input": text}}]}


def _reasoning(text: str) -> Delta:
    # DeepSeek's word and OpenRouter's: vLLM has had both.
    return {"reasoning_content": text, "reasoning": text}


class DividedText:
    """Collects the parts of one answer."""

    def __init__(self, parser: AnswerParser, shape: Shape) -> None:
        self._parser = parser
        self._shape = shape
        self._said = CollectedAnswer()

    @property
    def calls(self) -> bool:
        return bool(self._said.calls)

    def push(self, text: str) -> None:
        self._said.add(self._parser.push(text))

    def finish(self) -> None:
        self._said.add(self._parser.finish())

    def message(self) -> dict[str, Any]:
        """Return the message's fields that depend on the text."""
        content, calls = self._said.content, self._said.calls
        made: dict[str, Any] = {"content": content if content or not calls else None}
        if self._shape.include_reasoning and (reasoning := self._said.reasoning):
            made |= _reasoning(reasoning)
        if calls:
            made["tool_calls"] = [self._whole(call) for call in calls]
        return made

    def _whole(self, call: ToolCall) -> dict[str, Any]:
        if call.name not in self._shape.custom_tools:
            function = {"name": call.name, "arguments": call.arguments}
            return {"id": call.id, "type": "function", "function": function}
        reader = CustomInput()
        text = reader.push(call.arguments) + reader.finish()
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": text}}


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
