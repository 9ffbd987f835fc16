"""OpenAI's /v1/audio/transcriptions and /v1/audio/translations."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from http_gateway import problems
from http_gateway.backend import Backend
from http_gateway.openai.audio.form import AudioForm, form_schema, read_form
from http_gateway.openai.audio.formats import (
    REPLIES,
    TranscriptDelta,
    TranscriptDone,
    TranscriptReply,
    shown,
    usage_of,
)
from http_gateway.openapi import (
    WITH_MODEL,
    EventKinds,
    OpenAiError,
    operation,
    schema_of,
)
from http_gateway.streams.sse import EventSource, EventStream, Script, event
from sax.errors import InvalidRequest, SaxError
from sax.fields.field import RequestRoute
from sax.fields.table import field
from sax.speech.transcripts import TranscriptPart, TranscriptRequest, whole_transcript

_FORM = "multipart/form-data"
_MOST_FIELDS = 16


def _told(route: RequestRoute) -> dict[str, Any]:
    events = EventKinds(TranscriptDelta, TranscriptDone, OpenAiError)
    streamed = events if route is RequestRoute.TRANSCRIPTIONS else None
    made = operation(TranscriptReply, errors=OpenAiError, statuses=WITH_MODEL, events=streamed)
    made["openapi_extra"]["requestBody"] = {
        "required": True,
        "content": {_FORM: {"schema": form_schema(route)}},
    }
    content = made["responses"][200]["content"]
    content.update({kind: {"schema": schema_of(each)} for kind, each in REPLIES.items()})
    return made


class AudioRoutes:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def router(self) -> APIRouter:
        router = APIRouter(tags=["openai"])
        for route, handler in (
            (RequestRoute.TRANSCRIPTIONS, self.transcribe),
            (RequestRoute.TRANSLATIONS, self.translate),
        ):
            router.add_api_route(str(route), handler, methods=["POST"], **_told(route))
        return router

    async def transcribe(self, request: Request) -> Response:
        """Write down what a sound says, in its own language."""
        return await self._answer(request, RequestRoute.TRANSCRIPTIONS)

    async def translate(self, request: Request) -> Response:
        """Write down in English what a sound says."""
        return await self._answer(request, RequestRoute.TRANSLATIONS)

    async def _answer(self, request: Request, route: RequestRoute) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != _FORM:
            raise InvalidRequest(f"the body: send {_FORM}", param="body")
        async with request.form(max_files=1, max_fields=_MOST_FIELDS) as given:
            form = read_form(given, route)
            sound = await form.file.read()
        asked = await self._asked(form, sound, route)
        limit_s = self._backend.limit_s(request)
        if form.stream:
            return self._stream(request, partial(self._feed, asked, limit_s))
        parts: list[TranscriptPart] = []
        await self._backend.run(request, self._feed(asked, limit_s, parts.append))
        task = "translate" if asked.translate else "transcribe"
        body, media_type = shown(whole_transcript(parts), form.response_format, task)
        return Response(body, media_type=media_type)

    async def _asked(self, form: AudioForm, sound: bytes, route: RequestRoute) -> TranscriptRequest:
        field(route, "file").check_text(sound)
        return TranscriptRequest(
            model_id=await self._backend.catalog.resolve(form.model),
            sound=sound,
            language=form.language,
            translate=route is RequestRoute.TRANSLATIONS,
            prompt=form.prompt,
            temperature=form.temperature,
        )

    async def _feed(
        self, asked: TranscriptRequest, limit_s: float, sink: Callable[[TranscriptPart], None]
    ) -> None:
        parts = self._backend.client.transcribe_stream(asked, limit_s)
        async with aclosing(parts):
            async for part in parts:
                sink(part)

    def _stream(self, request: Request, feed: Any) -> Response:
        told = ToldTranscript()
        script = Script(
            closing=told.closing,
            failure=_failure,
            on_first=self._backend.on_first_token(request),
            on_end=partial(self._backend.note_end, request),
        )
        return EventStream([EventSource(feed, told.encode)], script)


class ToldTranscript:
    """A transcript as events."""

    def __init__(self) -> None:
        self._parts: list[TranscriptPart] = []
        self._begun = False

    def encode(self, part: TranscriptPart) -> bytes:
        self._parts.append(part)
        text = "".join(each.text for each in part.segments)
        if not self._begun:  # the whole text begins without white space, too
            text = text.lstrip()
        if not text:
            return b""
        self._begun = True
        delta: TranscriptDelta = {"type": "transcript.text.delta", "delta": text}
        return event(msgspec.json.encode(delta))

    def closing(self) -> bytes:
        whole = whole_transcript(self._parts)
        done: TranscriptDone = {
            "type": "transcript.text.done",
            "text": whole.text,
            "usage": usage_of(whole),
        }
        return event(msgspec.json.encode(done))


def _failure(error: SaxError) -> bytes:
    return event(problems.openai_error(problems.describe(error)))
