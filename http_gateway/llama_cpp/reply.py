"""Replies of llama.cpp's /infill: whole, or as the events of a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Literal, TypedDict, cast

import msgspec

from http_gateway.chats.divided_answer import DividedAnswer
from http_gateway.chats.stopwatch import Stopwatch
from http_gateway.openai.shape import Shape
from http_gateway.streams.sse import event
from sax.types import TokenChunk

StopType = Literal["none", "eos", "limit", "word"]


class InfillTimings(TypedDict):
    """Tokens and milliseconds of the prompt, and of the answer."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float


class InfillPiece(msgspec.Struct):
    """A piece of a stream."""

    content: str
    tokens_predicted: int
    tokens_evaluated: int
    index: int = 0
    stop: bool = False


class InfillReply(TypedDict, total=False):
    """A whole reply, and the last event of a stream; or those fields that `response_fields` names,
    under these paths."""

    content: str
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    tokens_cached: int
    stop_type: StopType
    stopping_word: str
    timings: InfillTimings
    index: int
    stop: bool
    truncated: bool  # never: what does not fit is refused


_encode = msgspec.json.Encoder().encode


class InfillAnswer:
    """One answer as it comes."""

    def __init__(
        self,
        model: str,
        watch: Stopwatch,
        *,
        indent: int = 0,
        only_cached: bool = False,
        fields: Sequence[str] = (),
    ) -> None:
        """indent: of its lines, at least. only_cached: there is no answer. fields: paths of the
        reply; (): all."""
        self.answer = DividedAnswer(Shape())
        self.over = asyncio.Event()  # what comes from now on is not shown
        self._model = model
        self._watch = watch
        self._limit = IndentLimit(indent)
        self._silent = only_cached
        self._fields = fields
        self._texts: list[str] = []

    def add(self, chunk: TokenChunk) -> None:
        """Read a chunk of a whole reply."""
        self._texts.append(self._shown(chunk))

    def body(self) -> bytes:
        return self._last("".join(self._texts))

    def encode(self, chunk: TokenChunk) -> bytes:
        """Return the event of the next chunk of a stream, if it has one."""
        text = self._shown(chunk)
        if not text:
            return b""
        answer = self.answer
        return event(_encode(InfillPiece(text, answer.completion_tokens, answer.prompt_tokens)))

    def closing(self) -> bytes:
        return event(self._last(""))

    def _shown(self, chunk: TokenChunk) -> str:
        self._watch.token()
        if self._limit.ended:
            return ""
        self.answer.read(chunk)
        text = self._limit.push(chunk.text, last=chunk.finish_reason is not None)
        if self._limit.ended:
            self.answer.finish_reason = "length"
            self.over.set()
        return "" if self._silent else text

    def _last(self, content: str) -> bytes:
        answer, word = self.answer, self.answer.stop_reason
        kinds: dict[str | None, StopType] = {"length": "limit", "stop": "eos"}
        sequence = word if isinstance(word, str) else ""
        reply = InfillReply(
            content=content,
            model=self._model,
            tokens_predicted=answer.completion_tokens,
            tokens_evaluated=answer.prompt_tokens,
            tokens_cached=answer.cached_tokens,
            stop_type="word" if sequence else kinds.get(answer.finish_reason, "none"),
            stopping_word=sequence,
            timings=self._timings(),
            index=0,
            stop=True,
            truncated=False,
        )
        return _encode(_selected(reply, self._fields) if self._fields else reply)

    def _timings(self) -> InfillTimings:
        spent, answer = self._watch.durations(), self.answer
        prompt_ms, predicted_ms = (
            spent[name] / 1e6 for name in ("prompt_eval_duration", "eval_duration")
        )
        computed, made = answer.prompt_tokens - answer.cached_tokens, answer.completion_tokens
        return InfillTimings(
            cache_n=answer.cached_tokens,
            prompt_n=computed,
            prompt_ms=prompt_ms,
            prompt_per_second=1e3 * computed / prompt_ms if prompt_ms else 0.0,
            predicted_n=made,
            predicted_ms=predicted_ms,
            predicted_per_second=1e3 * made / predicted_ms if predicted_ms else 0.0,
        )


def _selected(reply: InfillReply, paths: Sequence[str]) -> dict[str, Any]:
    """Return the fields at these paths, each under its path; unknown ones are left out."""
    found: dict[str, Any] = {}
    for path in paths:
        value: Any = reply
        for name in path.split("/"):
            level = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
            value = level.get(name)
        if value is not None:
            found[path] = value
    return found


class IndentLimit:
    """Ends a text before the first line that is indented less than asked for.

    The first line is that of the cursor, and has no limit.
    """

    def __init__(self, least: int) -> None:
        """least: spaces and tabs that a line begins with."""
        self._least = least
        self._held = ""  # a line's end, and the blanks after it
        self.over = least == 0  # nothing more is looked for
        self.ended = False  # the text is at its end

    def push(self, text: str, *, last: bool = False) -> str:
        """Return what belongs to the text so far. last: no more comes."""
        if self.ended:
            return ""
        if self.over:
            return text
        text, self._held = self._held + text, ""
        shown, *lines = text.split("\n")
        for number, line in enumerate(lines):
            indent = len(line) - len(line.lstrip(" \t"))
            open_line = number == len(lines) - 1 and indent == len(line)
            if open_line and not last:
                self._held = f"\n{line}"
                return shown
            if indent < self._least and not open_line:
                self.ended = True
                return shown
            shown += f"\n{line}"
        return shown
