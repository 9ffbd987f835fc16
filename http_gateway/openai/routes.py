"""OpenAI's routes /v1/completions and /v1/chat/completions.

Each decodes the request, calls the cell and encodes the reply.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from fastapi import APIRouter, Request
from starlette.responses import Response

from http_gateway import problems
from http_gateway.access import RequestRecord
from http_gateway.backend import Backend
from http_gateway.body import read_body
from http_gateway.openai import reply
from http_gateway.openai.bodies import CHAT, COMPLETION
from http_gateway.openai.chat import to_messages
from http_gateway.openai.completions import CompletionEvents, CompletionRequest, Prompt
from http_gateway.openai.content_parts import with_heard
from http_gateway.openai.events import ChatEvents, stream_end
from http_gateway.openai.model_list import ModelListRoutes
from http_gateway.openai.reply import (
    ChatCompletion,
    ChatCompletionEvent,
    Completion,
    CompletionEvent,
    Head,
    Transcript,
    ended_early,
    read_all,
    usage,
)
from http_gateway.openai.reply_schema import Shape
from http_gateway.openai.schema import ChatRequest
from http_gateway.openapi import WITH_MODEL, EventKinds, OpenAiError, operation
from http_gateway.sse import Ending, EventSource, EventStream, Feed, Script, event
from sax.errors import SaxError
from sax.fields.field import RequestRoute
from sax.types import (
    PLAIN_CHAT,
    ChatOptions,
    GenerateRequest,
    Message,
    ReplyOptions,
    SamplingParams,
    TokenChunk,
)

_JSON = "application/json"

_told = partial(operation, errors=OpenAiError)
_CHAT = _told(
    ChatCompletion,
    statuses=WITH_MODEL,
    body=CHAT,
    events=EventKinds(ChatCompletionEvent, OpenAiError, last="[DONE]"),
)
_COMPLETION = _told(
    Completion,
    statuses=WITH_MODEL,
    body=COMPLETION,
    events=EventKinds(CompletionEvent, OpenAiError, last="[DONE]"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One HTTP request: the generate requests it fans out into and the format of its reply."""

    head: Head
    kind: str  # the "object" of its stream events
    requests: tuple[GenerateRequest, ...]  # best_of per prompt, prompt-major
    shape: Shape
    limit_s: float
    events: Callable[[Head, int, Shape], ChatEvents | CompletionEvents]
    body: Callable[[Head, Sequence[Transcript], reply.Usage, Shape], bytes]


class OpenAiRoutes:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1", tags=["openai"])
        ModelListRoutes(self._backend).add_to(router)
        router.add_api_route("/chat/completions", self.chat, methods=["POST"], **_CHAT)
        router.add_api_route("/completions", self.completions, methods=["POST"], **_COMPLETION)
        return router

    async def chat(self, request: Request) -> Response:
        """Complete a chat, streamed or not."""
        body = ChatRequest.model_validate_json(await read_body(request, RequestRoute.CHAT))
        body.check()
        messages = with_heard(to_messages(body.messages), body.mm_processor_kwargs)
        prompt = await self._backend.with_images(messages)
        head = Head(f"chatcmpl-{uuid.uuid4().hex}", int(time.time()), body.model)
        model_id = await self._backend.catalog.resolve(body.model)
        job = Job(
            head=head,
            kind="chat.completion.chunk",
            requests=generate_requests(head.id, model_id, (prompt,), body, body.options),
            shape=body.shape(),
            limit_s=self._backend.limit_s(request, body.timeout),
            events=ChatEvents,
            body=reply.chat_body,
        )
        return await self._answer(request, job, stream=bool(body.stream))

    async def completions(self, request: Request) -> Response:
        """Complete one or several prompts, streamed or not."""
        raw = await read_body(request, RequestRoute.COMPLETIONS)
        body = CompletionRequest.model_validate_json(raw)
        body.check()
        head = Head(f"cmpl-{uuid.uuid4().hex}", int(time.time()), body.model)
        model_id = await self._backend.catalog.resolve(body.model)
        job = Job(
            head=head,
            kind="text_completion",
            requests=generate_requests(head.id, model_id, body.prompts(), body),
            shape=body.shape(),
            limit_s=self._backend.limit_s(request, body.timeout),
            events=CompletionEvents,
            body=reply.completion_body,
        )
        return await self._answer(request, job, stream=bool(body.stream))

    async def _answer(self, request: Request, job: Job, *, stream: bool) -> Response:
        return self._stream(request, job) if stream else await self._complete(request, job)

    async def _complete(self, request: Request, job: Job) -> Response:
        transcripts = [Transcript(shape=job.shape) for _ in job.requests]
        first = self._backend.on_first_token(request)
        try:
            await self._backend.run(request, read_all(self._feeds(job), transcripts, first))
        finally:
            counts = self._count(transcripts, job.shape.best_of)
        chosen = reply.best(transcripts, job.shape)
        return Response(job.body(job.head, chosen, counts, job.shape), media_type=_JSON)

    def _stream(self, request: Request, job: Job) -> Response:
        events = [job.events(job.head, i, job.shape) for i in range(len(job.requests))]
        sources = [EventSource(*pair) for pair in zip(self._feeds(job), events, strict=True)]

        def closing() -> bytes:
            if not all(choice.finished for choice in events):
                raise ended_early()
            counts = usage(events, job.shape.n) if job.shape.include_usage else None
            return stream_end(job.head, job.kind, counts)

        def end(ending: Ending) -> None:
            self._count(events, job.shape.n)
            self._backend.note_end(request, ending)

        first = self._backend.on_first_token(request)
        return EventStream(
            sources, Script(closing=closing, failure=_failure, on_first=first, on_end=end)
        )

    def _feeds(self, job: Job) -> list[Feed[TokenChunk]]:
        ask = self._backend.generate_to
        return [partial(ask, each, timeout_s=job.limit_s) for each in job.requests]

    def _count(self, choices: Sequence[reply.Counted], n: int) -> reply.Usage:
        counts = usage(choices, n)
        self._backend.count(counts["prompt_tokens"], counts["completion_tokens"])
        return counts


class TextBody(Protocol):
    """A checked body that asks for text."""

    @property
    def priority(self) -> int | None: ...

    @property
    def cache_salt(self) -> str | None: ...

    @property
    def session(self) -> str: ...

    def sampling(self) -> SamplingParams: ...

    def reply(self) -> ReplyOptions: ...

    def shape(self) -> Shape: ...


def generate_requests(
    reply_id: str,
    model_id: str,
    prompts: Sequence[Prompt | tuple[Message, ...]],
    body: TextBody,
    chat: ChatOptions = PLAIN_CHAT,
) -> tuple[GenerateRequest, ...]:
    """Return the requests to the cell that a body fans out into, prompt-major."""
    first = GenerateRequest(
        model_id=model_id,
        prompt="",
        sampling=body.sampling(),
        reply=body.reply(),
        chat=chat,
        request_id=RequestRecord.current().id_in_cell(reply_id),
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
        session=body.session,
    )
    return fan_out(first, prompts, body.shape().best_of)


def fan_out(
    request: GenerateRequest, prompts: Sequence[Prompt | tuple[Message, ...]], n: int
) -> tuple[GenerateRequest, ...]:
    """Return n requests per prompt; with a seed, choice k of a prompt gets seed + k."""
    return tuple(
        replace(
            request,
            prompt=prompt,
            sampling=_choice_sampling(request.sampling, k),
            request_id=f"{request.request_id}-{i * n + k}",
        )
        for i, prompt in enumerate(prompts)
        for k in range(n)
    )


def _choice_sampling(sampling: SamplingParams, k: int) -> SamplingParams:
    if sampling.seed is None:
        return sampling
    return replace(sampling, seed=(sampling.seed + k) % 2**64)


def _failure(error: SaxError) -> bytes:
    return event(problems.openai_error(problems.describe(error)))
