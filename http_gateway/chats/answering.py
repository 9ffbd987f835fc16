"""ChatAnswering: asks the cell for one answer and reads it whole or streams it, for API families
whose chats have one answer each."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Generic, TypeVar

from fastapi import Request
from starlette.responses import Response

from http_gateway.backend import Backend
from http_gateway.chats.divided_answer import DividedAnswer
from http_gateway.openai.reply import ended_early
from http_gateway.streams.sse import Ending, EventSource, EventStream, Feed, Script
from sax.errors import SaxError, UnsupportedParameter
from sax.types import ChatOptions, GenerateRequest, TokenChunk

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
