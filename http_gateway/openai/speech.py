"""OpenAI's /v1/audio/speech: a sound file as it is spoken, or events with its bytes."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any, Literal, TypedDict

import msgspec
from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from http_gateway import problems
from http_gateway.access import RequestRecord
from http_gateway.backend import Backend
from http_gateway.body import read_body
from http_gateway.bounds import WHOLE, bounded, ranged
from http_gateway.openai.unsupported import refuse_unsupported
from http_gateway.openapi import WITH_MODEL, EventKinds, OpenAiError, RequestBody, Schema, operation
from http_gateway.sse import EventSource, EventStream, Script, event
from sax.errors import SaxError, UnsupportedParameter
from sax.fields.field import RequestRoute
from sax.fields.table import SPEECH_CHARACTERS, field
from sax.format import quoted
from sax.speech import FORMATS, SoundFormat, SpeechRequest, SpokenPart, check_speech

log = logging.getLogger(__name__)

_ROUTE = RequestRoute.SPEECH
_SEED, _VOICE = field(_ROUTE, "seed"), field(_ROUTE, "voice")
_TYPES: dict[SoundFormat, str] = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}
_EVENTS, _BYTES = "sse", "audio"
# Field -> the values besides null that change nothing. Any other value is refused.
_EXTRA: dict[str, tuple[object, ...]] = {"instructions": ("",)}
_REMARKS = {"instructions": "No model here follows them: choose a voice and a speed."}


class SpeechRequestBody(BaseModel):
    """POST /v1/audio/speech. null always means the default."""

    model_config = ConfigDict(defer_build=True, extra="allow", strict=True, frozen=True)

    model: Annotated[str, bounded(_ROUTE, "model")]
    input: Annotated[str, bounded(_ROUTE, "input")]
    # A name or number of one of the model's speakers; the first without it
    voice: Annotated[str, bounded(_ROUTE, "voice")] | None = None
    # mp3 without it
    response_format: Annotated[str, bounded(_ROUTE, "response_format")] | None = None
    speed: Annotated[float, ranged(_ROUTE, "speed")] | None = None
    # The same one gives the same sound
    seed: Annotated[int, ranged(_ROUTE, "seed"), WHOLE] | None = None
    # audio: the file; sse: events with its bytes
    stream_format: Annotated[str, bounded(_ROUTE, "stream_format")] | None = None
    # Seconds, waiting included
    timeout: Annotated[float, ranged(_ROUTE, "timeout")] | None = None

    def asked(self, model_id: str) -> SpeechRequest:
        """Raises InvalidRequest or UnsupportedParameter naming the field."""
        refuse_unsupported(self.model_extra, _EXTRA)
        wanted = self.response_format or "mp3"
        check_speech(self.input, wanted)
        if self.stream_format not in (None, _BYTES, _EVENTS):
            raise UnsupportedParameter(
                f"stream_format {quoted(self.stream_format)} is not supported: send {_BYTES} or "
                f"{_EVENTS}",
                param="stream_format",
            )
        return SpeechRequest(
            model_id=model_id,
            text=self.input,
            voice=self.voice or "",
            format=next(each for each in _TYPES if each == wanted),
            speed=1.0 if self.speed is None else self.speed,
            seed=self.seed,
        )


class SpeechUsage(TypedDict):
    """Tokens of the text that the model read, and frames of sound that it made."""

    input_tokens: int
    output_tokens: int
    total_tokens: int


class SpeechDelta(TypedDict):
    """Bytes of the sound file in base64, as they come."""

    type: Literal["speech.audio.delta"]
    audio: str


class SpeechDone(TypedDict):
    """The end of a sound."""

    type: Literal["speech.audio.done"]
    usage: SpeechUsage


SPEECH = RequestBody(
    model=SpeechRequestBody,
    route=_ROUTE,
    unchanged=_EXTRA,
    remarks=_REMARKS,
    replaced={
        "input": {"type": "string", "minLength": 1, "maxLength": SPEECH_CHARACTERS},
        "response_format": {"enum": [None, *FORMATS], "description": "mp3 without it."},
        "seed": {
            "anyOf": [{"type": "integer", "minimum": 0, "maximum": _SEED.most}, {"type": "null"}],
            "description": "The same one gives the same sound; none given: the server draws one.",
        },
        "stream_format": {
            "enum": [None, _BYTES, _EVENTS],
            "description": "The file as it comes, or events with its bytes.",
        },
        "voice": {
            "anyOf": [{"type": "string", "maxLength": _VOICE.bytes}, {"type": "null"}],
            "description": "A name or number of one of the model's speakers; without it the first.",
        },
    },
)


_FILE: Schema = {"type": "string", "format": "binary"}


def _told() -> dict[str, Any]:
    first, *others = _TYPES.values()
    return operation(
        _FILE,
        errors=OpenAiError,
        statuses=WITH_MODEL,
        body=SPEECH,
        events=EventKinds(SpeechDelta, SpeechDone, OpenAiError),
        media_type=first,
        others=dict.fromkeys(others, _FILE),
    )


class SpeechRoutes:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def router(self) -> APIRouter:
        router = APIRouter(tags=["openai"])
        router.add_api_route(str(_ROUTE), self.speak, methods=["POST"], **_told())
        return router

    async def speak(self, request: Request) -> Response:
        """Speak a text."""
        body = SpeechRequestBody.model_validate_json(await read_body(request, _ROUTE))
        asked = body.asked(await self._backend.catalog.resolve(body.model))
        limit_s = self._backend.limit_s(request, body.timeout)
        told = ToldSpeech(events=body.stream_format == _EVENTS)
        script = Script(
            closing=partial(self._closing, told),
            failure=told.failure,
            on_first=self._backend.on_first_token(request),
            on_end=partial(self._backend.note_end, request),
        )
        headers = {} if told.events else {"content-type": _TYPES[asked.format]}
        source = EventSource(partial(self._feed, asked, limit_s), told.encode)
        return EventStream([source], script, headers)

    async def _feed(
        self, asked: SpeechRequest, limit_s: float, sink: Callable[[SpokenPart], None]
    ) -> None:
        async with aclosing(self._backend.client.speak_stream(asked, limit_s)) as parts:
            async for part in parts:
                sink(part)

    def _closing(self, told: ToldSpeech) -> bytes:
        self._backend.count(told.tokens, told.frames)
        return told.closing()


class ToldSpeech:
    """A sound as events, or as its bytes."""

    def __init__(self, *, events: bool) -> None:
        self.events = events
        self.tokens = 0
        self.frames = 0

    def encode(self, part: SpokenPart) -> bytes:
        self.tokens += part.tokens
        self.frames += part.frames
        if not self.events or not part.data:
            return part.data
        audio = base64.b64encode(part.data).decode()
        delta: SpeechDelta = {"type": "speech.audio.delta", "audio": audio}
        return event(msgspec.json.encode(delta))

    def closing(self) -> bytes:
        if not self.events:
            return b""
        usage: SpeechUsage = {
            "input_tokens": self.tokens,
            "output_tokens": self.frames,
            "total_tokens": self.tokens + self.frames,
        }
        done: SpeechDone = {"type": "speech.audio.done", "usage": usage}
        return event(msgspec.json.encode(done))

    def failure(self, error: SaxError) -> bytes | None:
        """None: a file has no place for an error, so the connection closes before its end."""
        if not self.events:
            log.warning("request %s breaks off: %s", RequestRecord.current().request_id, error)
            return None
        return event(problems.openai_error(problems.describe(error)))
