"""OpenAI's routes: /v1/models, /v1/completions, /v1/chat/completions.

Each decodes the request, calls the cell and encodes the reply.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from http_gateway import problems
from http_gateway.access.record import RequestRecord
from http_gateway.backend import Backend
from http_gateway.body import read_body
from http_gateway.openai import reply
from http_gateway.openai.bodies import CHAT, COMPLETION, NAME
from http_gateway.openai.chat import to_messages
from http_gateway.openai.events import ChatEvents, CompletionEvents, stream_end
from http_gateway.openai.reply import (
    ChatCompletion,
    ChatCompletionEvent,
    Completion,
    CompletionEvent,
    Head,
    ModelCard,
    ModelList,
    Transcript,
    usage,
)
from http_gateway.openai.schema import ChatRequest, CompletionRequest, Prompt
from http_gateway.openai.shape import Shape
from http_gateway.openapi import ALWAYS, WITH_MODEL, EventKinds, OpenAiError, operation
from http_gateway.streams.sse import (
    Ending,
    EventSource,
    EventStream,
    Feed,
    Script,
    event,
    stop,
)
from sax.adapters import base_of
from sax.errors import ReplicaLost, SaxError
from sax.fields.field import RequestRoute
from sax.types import (
    PLAIN_CHAT,
    ChatOptions,
    GenerateRequest,
    Message,
    PublishedModel,
    ReplyOptions,
    SamplingParams,
    TokenChunk,
)

_JSON = "application/json"

_told = partial(operation, errors=OpenAiError)
_LIST = _told(ModelList)
_ONE = _told(ModelCard, statuses=(*ALWAYS, 400, 404), parameters=[NAME])
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
        add = router.add_api_route
        add("/models", self.models, methods=["GET"], **_LIST)
        # A full name contains slashes, percent-encoded or not.
        add("/models/{name:path}", self.model, methods=["GET"], **_ONE)
        add("/chat/completions", self.chat, methods=["POST"], **_CHAT)
        add("/completions", self.completions, methods=["POST"], **_COMPLETION)
        return router

    async def models(self) -> Response:
        """List every published model that the caller's key may use."""
        found = [model_card(model) for model in await self._backend.catalog.refresh()]
        return Response(msgspec.json.encode({"object": "list", "data": found}), media_type=_JSON)

    async def model(self, request: Request) -> Response:
        """Return one published model, by its full name or last component."""
        catalog = self._backend.catalog
        model_id = await catalog.resolve(request.path_params["name"])
        models = {model.spec.model_id: model for model in await catalog.refresh()}
        model = models.get(model_id) or await self._backend.client.list(model_id)
        return Response(msgspec.json.encode(model_card(model)), media_type=_JSON)

    async def chat(self, request: Request) -> Response:
        """Complete a chat, streamed or not."""
        body = ChatRequest.model_validate_json(await read_body(request, RequestRoute.CHAT))
        body.check()
        prompt = await self._backend.with_images(to_messages(body.messages))
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


async def read_all(
    feeds: Sequence[Feed[TokenChunk]],
    transcripts: Sequence[Transcript],
    on_first: Callable[[], None],
) -> None:
    """Read every choice to its end; the first failure cancels the others."""
    waiting = [on_first]
    tasks = [
        asyncio.create_task(_read(feed, transcript, waiting))
        for feed, transcript in zip(feeds, transcripts, strict=True)
    ]
    try:
        await asyncio.gather(*tasks)
    finally:
        await stop(*tasks)


async def _read(
    feed: Feed[TokenChunk], transcript: Transcript, waiting: list[Callable[[], None]]
) -> None:
    def add(chunk: TokenChunk) -> None:
        if waiting:
            waiting.pop()()
        transcript.add(chunk)

    await feed(add)
    if transcript.finish_reason is None:
        raise ended_early()


def ended_early() -> ReplicaLost:
    """Return the error of an answer whose last chunk has no finish reason."""
    return ReplicaLost("the replica ended the stream without a finish reason; retry")


def _failure(error: SaxError) -> bytes:
    return event(problems.openai_error(problems.describe(error)))


def model_card(model: PublishedModel) -> dict[str, object]:
    return {
        "id": model.spec.model_id,
        "object": "model",
        "created": int(model.published_at_s),
        "owned_by": "sax",
        **({"parent": base} if (base := base_of(model.spec)) else {}),
        **({"max_model_len": model.max_context} if model.max_context else {}),
        "replicas": model.spec.replicas,
        "ready_replicas": model.ready_replicas,
    }
