"""DividedAnswer: the parts of one chat's answer as they come, and its counts."""

from __future__ import annotations

from http_gateway.openai.divided_text import parser_of
from http_gateway.openai.shape import Shape
from sax.dialects.answer_parser import AnswerParser
from sax.dialects.events import AnswerEvent, ContentDelta, ReasoningDelta
from sax.types import TokenChunk


class DividedAnswer:
    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._parser: AnswerParser | None = None  # None: the text is all content
        self._begun = False
        self._before = (0, 0, 0, 0)  # counts of earlier rounds
        self.prompt_tokens = 0
        self.cached_tokens = 0  # of the prompt
        self.completion_tokens = 0
        self.reasoning_tokens = 0  # among them
        self.schema_violation = ""  # how a finished answer breaks its schema
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def read(self, chunk: TokenChunk) -> list[AnswerEvent]:
        """Return the parts that the next chunk adds."""
        if not self._begun:
            self._begun = True
            self._parser = parser_of(chunk.answer_format, self._shape)
        self._count(chunk)
        if self._parser is None:
            return [ContentDelta(chunk.text)] if chunk.text else []
        events = self._parser.push(chunk.text)
        if chunk.finish_reason:
            events += self._parser.finish()
        if self._shape.include_reasoning:
            return events
        return [event for event in events if not isinstance(event, ReasoningDelta)]

    def go_on(self) -> None:
        """Read a further round of the answer next; tokens of all rounds are counted."""
        self._begun, self.finish_reason = False, None
        self._before = (
            self.prompt_tokens,
            self.cached_tokens,
            self.completion_tokens,
            self.reasoning_tokens,
        )

    def _count(self, chunk: TokenChunk) -> None:
        prompt, cached, completion, reasoning = self._before
        if chunk.prompt_tokens:
            self.prompt_tokens = prompt + chunk.prompt_tokens
            self.cached_tokens = cached + chunk.cached_tokens
        self.completion_tokens = completion + chunk.completion_tokens
        self.reasoning_tokens = reasoning + chunk.reasoning_tokens
        self.schema_violation = chunk.schema_violation
        self.finish_reason, self.stop_reason = chunk.finish_reason, chunk.stop_reason
