"""The one answer of a chat, for API families whose chats have one: asked for, divided, counted."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec
from fastapi import Request
from starlette.responses import Response

from http_gateway.backend import Backend
from http_gateway.openai.divided_text import parser_of
from http_gateway.openai.reply import ended_early
from http_gateway.openai.reply_schema import Shape
from http_gateway.sse import Ending, EventSource, EventStream, Feed, Script
from sax.dialects.answer_parser import AnswerParser
from sax.dialects.events import AnswerEvent, ContentDelta, ReasoningDelta
from sax.errors import SaxError, UnsupportedParameter
from sax.types import ChatOptions, GenerateRequest, TokenChunk


class DividedAnswer:
    """The parts of one chat's answer as they come, and its counts."""

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


class Stopwatch:
    """The durations of one answer, in nanoseconds, as Ollama names them."""

    def __init__(self, clock: Callable[[], float], arrived_s: float) -> None:
        """clock: seconds on the scale of `arrived_s`, when the request came."""
        self._clock = clock
        self._arrived_s = arrived_s
        self._asked_s = clock()
        self._first_s: float | None = None

    def token(self) -> None:
        """Note a token; the first counts."""
        if self._first_s is None:
            self._first_s = self._clock()

    def durations(self) -> dict[str, int]:
        now_s = self._clock()
        first_s = now_s if self._first_s is None else self._first_s
        return {
            "total_duration": _ns(now_s - self._arrived_s),
            "load_duration": _ns(self._asked_s - self._arrived_s),
            "prompt_eval_duration": _ns(first_s - self._asked_s),
            "eval_duration": _ns(now_s - first_s),
        }


def _ns(seconds: float) -> int:
    return max(0, round(seconds * 1e9))


_Answer = TypeVar("_Answer")
_Value = TypeVar("_Value")  # chunks, or chunks and what calls gave


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatQuestion:
    generate: GenerateRequest
    limit_s: float
    # Field that the cell may refuse -> the field of this family that stands for it
    names: Mapping[str, str]
    # Those of `names` that are left out for a model whose template has no such variable
    hints: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatStream(Generic[_Value]):
    """Encoders of one streamed answer."""

    encode: Callable[[_Value], bytes]
    closing: Callable[[], bytes]  # after the last value
    failure: Callable[[SaxError], bytes]
    headers: Mapping[str, str] = field(default_factory=dict[str, str])  # beside those of any stream


class ChatAnswering:
    """Asks the cell for one answer and reads it whole or streams it, for API families
    whose chats have one answer each.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def read(
        self,
        request: Request,
        feed: Feed[_Value],
        answer: DividedAnswer,
        add: Callable[[_Value], object],
    ) -> None:
        """Pass every value of the feed to `add`, which reads it into `answer`. Raises SaxError."""
        waiting = [self._backend.on_first_token(request)]

        def sink(value: _Value) -> None:
            if waiting:
                waiting.pop()()
            add(value)

        try:
            await self._backend.run(request, feed(sink))
        finally:
            self._backend.count(answer.prompt_tokens, answer.completion_tokens)
        if not answer.finished:
            raise ended_early()

    def stream(
        self,
        request: Request,
        feed: Feed[_Value],
        answer: DividedAnswer,
        style: ChatStream[_Value],
    ) -> Response:
        """Stream the answer, which `style.encode` reads into `answer`."""

        def closing() -> bytes:
            if not answer.finished:
                raise ended_early()
            return style.closing()

        def end(ending: Ending) -> None:
            self._backend.count(answer.prompt_tokens, answer.completion_tokens)
            self._backend.note_end(request, ending)

        first = self._backend.on_first_token(request)
        return EventStream(
            [EventSource(feed, style.encode)],
            Script(closing=closing, failure=style.failure, on_first=first, on_end=end),
            style.headers,
        )

    def feed(self, question: ChatQuestion) -> Feed[TokenChunk]:
        return partial(self.ask, question, question.generate)

    async def ask(
        self,
        question: ChatQuestion,
        generate: GenerateRequest,
        sink: Callable[[TokenChunk], None],
    ) -> None:
        """Pass the chunks of the question, or of one that goes on from it, to `sink`."""

        async def once(chat: ChatOptions) -> None:
            asked = replace(generate, chat=chat)
            await self._backend.generate_to(asked, sink, question.limit_s)

        try:
            await with_hints(generate.chat, question.hints, once)
        except SaxError as error:
            raise renamed(error, question.names) from error


async def with_hints(
    chat: ChatOptions, hints: frozenset[str], ask: Callable[[ChatOptions], Awaitable[_Answer]]
) -> _Answer:
    """Return the answer to a chat without those hints that the model's template has no variable
    for. The cell refuses them one by one, before it does anything else."""
    for _ in hints:
        try:
            return await ask(chat)
        except UnsupportedParameter as error:
            if error.param not in hints:
                raise
            chat = _without(chat, error.param)
    return await ask(chat)


def _without(chat: ChatOptions, param: str) -> ChatOptions:
    variables = json.loads(chat.chat_template_kwargs)
    variables.pop(param.rpartition(".")[2], None)
    return replace(chat, chat_template_kwargs=json.dumps(variables) if variables else "")


def renamed(error: SaxError, names: Mapping[str, str]) -> SaxError:
    """Return the error under the name of the field at fault: a template's variable has another."""
    param = error.param or ""
    if (name := names.get(param)) is None:
        return error
    if "." not in param:
        return type(error)(error.text.replace(param, name, 1), param=name)
    return UnsupportedParameter(
        f"{name} is not supported: this model's chat template has no variable "
        f"{param.rpartition('.')[2]}; leave it out",
        param=name,
    )


INVALID_JSON = "INVALID_JSON"  # as Anthropic's documentation names what is no object


def call_input(text: str) -> dict[str, Any]:
    """Return the object; text that is none, as it was cut or is wrong, under INVALID_JSON."""
    try:
        value: object = msgspec.json.decode(text or b"{}")
    except (msgspec.DecodeError, RecursionError):
        value = None
    return {**value} if isinstance(value, dict) else {INVALID_JSON: text}
