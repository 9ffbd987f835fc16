"""Ollama's routes of answers and vectors: /api/chat, /api/generate, /api/embed, /api/embeddings.

Each decodes the request, calls the cell and encodes the reply.
"""

from __future__ import annotations

import time
import uuid
from functools import partial
from typing import TypeVar

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from http_gateway import problems
from http_gateway.access import RequestRecord
from http_gateway.backend import Backend
from http_gateway.body import read_body
from http_gateway.chat_answer import ChatAnswering, ChatQuestion, ChatStream, Stopwatch
from http_gateway.ollama.bodies import CHAT, EMBED, GENERATE, OLD_EMBED
from http_gateway.ollama.names import untagged
from http_gateway.ollama.reply import (
    Form,
    OllamaAnswer,
    OllamaChatReply,
    OllamaTextReply,
    OllamaVector,
    OllamaVectors,
    chat_reply,
    loaded,
    text_reply,
)
from http_gateway.ollama.schema import (
    HINTS,
    NAMES,
    OllamaChat,
    OllamaEmbed,
    OllamaGenerate,
    OllamaOldEmbed,
)
from http_gateway.openapi import JSON, LINES, WITH_MODEL, EventKinds, OllamaError, operation
from sax.errors import ModelNotReady, SaxError
from sax.fields.field import RequestRoute
from sax.passes import Embedded
from sax.types import PLAIN_CHAT, GenerateRequest, Message

_told = partial(operation, errors=OllamaError, statuses=WITH_MODEL)
_CHAT = _told(OllamaChatReply, body=CHAT, lines=EventKinds(OllamaChatReply, OllamaError))
_GENERATE = _told(OllamaTextReply, body=GENERATE, lines=EventKinds(OllamaTextReply, OllamaError))
_EMBED = _told(OllamaVectors, body=EMBED)
_OLD_EMBED = _told(OllamaVector, body=OLD_EMBED)
_LINES = {"content-type": LINES}

AnswerBody = TypeVar("AnswerBody", OllamaChat, OllamaGenerate)


class OllamaRoutes:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._answering = ChatAnswering(backend)

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/api", tags=["ollama"])
        add = router.add_api_route
        add("/chat", self.chat, methods=["POST"], **_CHAT)
        add("/generate", self.generate, methods=["POST"], **_GENERATE)
        add("/embed", self.embed, methods=["POST"], **_EMBED)
        add("/embeddings", self.embed_one, methods=["POST"], **_OLD_EMBED)
        return router

    async def chat(self, request: Request) -> Response:
        """Answer a chat, streamed unless told otherwise; without messages only load the model."""
        raw = await read_body(request, RequestRoute.OLLAMA_CHAT)
        body = OllamaChat.model_validate_json(raw)
        body.check()
        return await self._answer(request, body, body.prompt, chat_reply)

    async def generate(self, request: Request) -> Response:
        """Answer a prompt, streamed unless told otherwise; without one only load the model."""
        raw = await read_body(request, RequestRoute.OLLAMA_GENERATE)
        body = OllamaGenerate.model_validate_json(raw)
        body.check()
        return await self._answer(request, body, body.text, text_reply)

    async def embed(self, request: Request) -> Response:
        """Embed one or several texts."""
        raw = await read_body(request, RequestRoute.OLLAMA_EMBED)
        body = OllamaEmbed.model_validate_json(raw)
        body.check()
        watch_from = RequestRecord.current().arrived_s
        model_id = await self._backend.catalog.resolve(untagged(body.model))
        watch = Stopwatch(time.perf_counter, watch_from)
        embedded = await self._embedded(request, model_id, body.input, body.dimensions or 0)
        durations = watch.durations()
        reply: OllamaVectors = {
            "model": body.model,
            "embeddings": embedded.vectors,
            "total_duration": durations["total_duration"],
            "load_duration": durations["load_duration"],
            "prompt_eval_count": embedded.prompt_tokens,
        }
        return Response(msgspec.json.encode(reply), media_type=JSON)

    async def embed_one(self, request: Request) -> Response:
        """Embed one text, as older clients ask."""
        raw = await read_body(request, RequestRoute.OLLAMA_EMBEDDINGS)
        body = OllamaOldEmbed.model_validate_json(raw)
        body.check()
        model_id = await self._backend.catalog.resolve(untagged(body.model))
        embedded = await self._embedded(request, model_id, [body.prompt], 0)
        reply: OllamaVector = {"embedding": embedded.vectors[0]}
        return Response(msgspec.json.encode(reply), media_type=JSON)

    async def _answer(
        self,
        request: Request,
        body: AnswerBody,
        prompt: str | tuple[Message, ...],
        form: Form,
    ) -> Response:
        model_id = await self._backend.catalog.resolve(untagged(body.model))
        if not prompt and not body.reply().suffix:
            await self._check_loaded(model_id)
            end = b"\n" if body.streamed else b""
            media = LINES if body.streamed else JSON
            return Response(loaded(form, body.model) + end, media_type=media)
        watch = Stopwatch(time.perf_counter, RequestRecord.current().arrived_s)
        made = OllamaAnswer(form, body.model, body.shape(), watch)
        prompt = await self._backend.with_images(prompt)
        feed = self._answering.feed(self._question(request, body, model_id, prompt))
        if body.streamed:
            style = ChatStream(
                encode=made.encode, closing=made.closing, failure=_failure, headers=_LINES
            )
            return self._answering.stream(request, feed, made.answer, style)
        await self._answering.read(request, feed, made.answer, made.add)
        return Response(made.body(), media_type=JSON)

    def _question(
        self,
        request: Request,
        body: AnswerBody,
        model_id: str,
        prompt: str | tuple[Message, ...],
    ) -> ChatQuestion:
        reply_id = f"ollama-{uuid.uuid4().hex}"
        generate = GenerateRequest(
            model_id=model_id,
            prompt=prompt,
            sampling=body.sampling(),
            reply=body.reply(),
            chat=PLAIN_CHAT if isinstance(prompt, str) else body.chat,
            request_id=RequestRecord.current().id_in_cell(reply_id),
        )
        limit_s = self._backend.limit_s(request)
        return ChatQuestion(generate=generate, limit_s=limit_s, names=NAMES, hints=HINTS)

    async def _check_loaded(self, model_id: str) -> None:
        """Raise ModelNotReady unless a replica holds the model."""
        model = await self._backend.client.list(model_id)
        if not model.ready_replicas:
            reasons = [replica.reason for replica in model.replicas if replica.reason]
            told = f": {reasons[0]}" if reasons else ""
            raise ModelNotReady(f"no replica of {model_id} is ready{told}; try again")

    async def _embedded(
        self, request: Request, model_id: str, inputs: list[str], dimensions: int
    ) -> Embedded:
        if not inputs:
            return Embedded([], 0)
        backend = self._backend
        limit_s = backend.limit_s(request)
        work = backend.client.embed_counted(model_id, inputs, limit_s, dimensions=dimensions)
        embedded = await backend.run(request, work)
        backend.count(embedded.prompt_tokens)
        return embedded


def _failure(error: SaxError) -> bytes:
    return problems.ollama_error(problems.describe(error)) + b"\n"
