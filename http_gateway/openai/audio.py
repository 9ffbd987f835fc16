"""OpenAI's /v1/audio/transcriptions and /v1/audio/translations: their form, and their formats: JSON
with and without times, text and subtitles."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NotRequired, TypedDict

import msgspec
from fastapi import APIRouter, Request
from starlette.datastructures import FormData, UploadFile
from starlette.responses import Response

from http_gateway import problems
from http_gateway.backend import Backend
from http_gateway.openai.unsupported import refuse_unsupported
from http_gateway.openapi import JSON, WITH_MODEL, EventKinds, OpenAiError, Schema, operation
from http_gateway.sse import EventSource, EventStream, Script, event
from sax.errors import InvalidRequest, SaxError, UnsupportedParameter
from sax.fields.field import RequestRoute
from sax.fields.table import field, fields_of
from sax.format import quoted
from sax.names import MODEL_NAME_PATTERN
from sax.speech import (
    Segment,
    TranscriptPart,
    TranscriptRequest,
    WholeTranscript,
    code_of,
    name_of,
    whole_transcript,
)

_PLAIN = "text/plain; charset=utf-8"
_SUBTITLES = {"srt": "application/x-subrip; charset=utf-8", "vtt": "text/vtt; charset=utf-8"}
_TEXTS = ("text/plain", "text/vtt", "application/x-subrip")
_FORM = "multipart/form-data"
_MOST_FIELDS = 16
_FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
_GRANULARITIES = "timestamp_granularities"
_TIMES = ("segment", "word")
_LISTS = (f"{_GRANULARITIES}[]", "include[]")
_STREAMED = ("json", "text")
# Field -> the values that change nothing. Any other value is refused.
_EXTRA: dict[str, tuple[object, ...]] = {
    "chunking_strategy": ("auto",),  # windows follow the timestamps
    "include[]": ([],),  # logprobs of tokens
    "known_speaker_names": (),
    "known_speaker_references": (),
}


class DurationUsage(TypedDict):
    """Length of a sound, to whole seconds."""

    type: Literal["duration"]
    seconds: int


class TranscriptSegment(TypedDict):
    """Words between two timestamps, in seconds."""

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


class TranscriptWord(TypedDict):
    """A word with the punctuation at it; times in seconds."""

    word: str
    start: float
    end: float


class TranscriptReply(TypedDict):
    """Transcript of a sound; all but text and usage with `verbose_json` only."""

    text: str
    usage: DurationUsage
    task: NotRequired[str]
    language: NotRequired[str]
    duration: NotRequired[float]
    segments: NotRequired[list[TranscriptSegment]]
    words: NotRequired[list[TranscriptWord]]


class TranscriptDelta(TypedDict):
    """A piece of a transcript, as it comes."""

    type: Literal["transcript.text.delta"]
    delta: str


class TranscriptDone(TypedDict):
    """The end of a transcript, with the whole text."""

    type: Literal["transcript.text.done"]
    text: str
    usage: DurationUsage


def shown(
    transcript: WholeTranscript, wanted: str, task: str, times: Collection[str]
) -> tuple[bytes, str]:
    """Return a transcript in a response format, and its content type. times: segment, word."""
    match wanted:
        case "text":
            return f"{transcript.text}\n".encode(), _PLAIN
        case "srt" | "vtt":
            return _subtitles(transcript, wanted).encode(), _SUBTITLES[wanted]
        case "verbose_json":
            return msgspec.json.encode(_verbose(transcript, task, times)), JSON
        case _:
            brief: TranscriptReply = {"text": transcript.text, "usage": usage_of(transcript)}
            return msgspec.json.encode(brief), JSON


def usage_of(transcript: WholeTranscript) -> DurationUsage:
    return {"type": "duration", "seconds": math.ceil(transcript.duration)}


def _verbose(transcript: WholeTranscript, task: str, times: Collection[str]) -> TranscriptReply:
    made: TranscriptReply = {
        "task": task,
        "language": name_of(transcript.language),
        "duration": transcript.duration,
        "text": transcript.text,
        "usage": usage_of(transcript),
    }
    if "segment" in times:
        made["segments"] = [_segment(id, each) for id, each in enumerate(transcript.segments)]
    if "word" in times:
        words = (word for segment in transcript.segments for word in segment.words)
        made["words"] = [{"word": w.text, "start": w.start, "end": w.end} for w in words]
    return made


def _segment(id: int, segment: Segment) -> TranscriptSegment:
    return {
        "id": id,
        "seek": segment.seek,
        "start": segment.start,
        "end": segment.end,
        "text": segment.text,
        "tokens": [*segment.tokens],
        "temperature": segment.temperature,
        "avg_logprob": segment.avg_logprob,
        "compression_ratio": segment.compression_ratio,
        "no_speech_prob": segment.no_speech_prob,
    }


def _subtitles(transcript: WholeTranscript, wanted: str) -> str:
    mark = "," if wanted == "srt" else "."
    cues = [
        f"{_clock(each.start, mark)} --> {_clock(each.end, mark)}\n{_line(each)}\n"
        for each in transcript.segments
    ]
    if wanted == "srt":
        return "\n".join(f"{number}\n{cue}" for number, cue in enumerate(cues, 1))
    return "\n".join(["WEBVTT\n", *cues])


def _line(segment: Segment) -> str:
    """Return a cue's text, which may hold neither an empty line nor an arrow."""
    return " ".join(segment.text.split()).replace("-->", "->")


def _clock(seconds: float, mark: str) -> str:
    whole = round(seconds * 1000)
    minutes, rest = divmod(whole, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{rest // 1000:02}{mark}{rest % 1000:03}"


def _told(route: RequestRoute) -> dict[str, Any]:
    events = EventKinds(TranscriptDelta, TranscriptDone, OpenAiError)
    streamed = events if route is RequestRoute.TRANSCRIPTIONS else None
    made = operation(
        TranscriptReply,
        errors=OpenAiError,
        statuses=WITH_MODEL,
        events=streamed,
        others=dict.fromkeys(_TEXTS, {"type": "string"}),
    )
    made["openapi_extra"]["requestBody"] = {
        "required": True,
        "content": {_FORM: {"schema": _form_schema(route)}},
    }
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
            form = _read_form(given, route)
            sound = await form.file.read()
        asked = await self._asked(form, sound, route)
        limit_s = self._backend.limit_s(request)
        if form.stream:
            return self._stream(request, partial(self._feed, asked, limit_s))
        parts: list[TranscriptPart] = []
        await self._backend.run(request, self._feed(asked, limit_s, parts.append))
        task = "translate" if asked.translate else "transcribe"
        times, transcript = form.times or _TIMES[:1], whole_transcript(parts)
        body, media_type = shown(transcript, form.response_format, task, times)
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
            words="word" in form.times,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioForm:
    """A request of /v1/audio/*; "" and 0 mean the default."""

    file: UploadFile
    model: str
    language: str
    prompt: str
    response_format: str
    temperature: float
    stream: bool
    times: frozenset[str]  # of verbose_json: segment, word


def _read_form(form: FormData, route: RequestRoute) -> AudioForm:
    """Raises InvalidRequest or UnsupportedParameter naming the field."""
    fields = _fields(form)
    file, rows = fields.pop("file", None), fields_of(route)
    if not isinstance(file, UploadFile):
        raise InvalidRequest("file: send a sound, in a part with a file name", param="file")
    rows["filename"].check_text(file.filename or "", "file")
    texts = {name: _text(fields, name, route) for name in ("model", "prompt", "response_format")}
    if not texts["model"]:
        raise InvalidRequest("model: send the name of a model of sounds", param="model")
    made = AudioForm(
        file=file,
        model=texts["model"],
        language=code_of(_text(fields, "language", route)) if "language" in rows else "",
        prompt=texts["prompt"],
        response_format=_format(texts["response_format"]),
        temperature=_temperature(_text(fields, "temperature", route, bounded=False), route),
        stream="stream" in rows and _flag(_text(fields, "stream", route, bounded=False)),
        times=_times(fields.pop(f"{_GRANULARITIES}[]", []) if _GRANULARITIES in rows else []),
    )
    _check_times(made)
    refuse_unsupported(fields, _EXTRA)
    _check_stream(made)
    return made


def _fields(form: FormData) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in form.multi_items():
        if name in _LISTS:
            fields.setdefault(name, []).append(value)
        elif name in fields:
            raise InvalidRequest(f"{quoted(name)} is sent twice: send it once", param=name[:128])
        else:
            fields[name] = value
    return fields


def _text(fields: dict[str, Any], name: str, route: RequestRoute, *, bounded: bool = True) -> str:
    value = fields.pop(name, "")
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} is a file: send a text", param=name)
    if bounded:
        fields_of(route)[name].check_text(value)
    return value


def _format(given: str) -> str:
    if given and given not in _FORMATS:
        raise UnsupportedParameter(
            f"response_format {quoted(given)} is not supported: send {', '.join(_FORMATS)}",
            param="response_format",
        )
    return given or "json"


def _temperature(given: str, route: RequestRoute) -> float:
    if not given:
        return 0.0
    try:
        value: object = float(given[:32])
    except ValueError:
        value = given
    fields_of(route)["temperature"].read(value)
    assert isinstance(value, float)
    return value


def _flag(given: str) -> bool:
    if given not in ("", "true", "false"):
        raise InvalidRequest(f"stream is {quoted(given)}: send true or false", param="stream")
    return given == "true"


def _times(given: list[Any]) -> frozenset[str]:
    for each in given:
        if each not in _TIMES:
            raise InvalidRequest(
                f"timestamp_granularities {quoted(each)}: send {' or '.join(_TIMES)}",
                param=_GRANULARITIES,
            )
    return frozenset(given)


def _check_times(form: AudioForm) -> None:
    if form.times and form.response_format != "verbose_json":
        raise InvalidRequest(
            "timestamp_granularities needs response_format verbose_json, not "
            f"{form.response_format}",
            param=_GRANULARITIES,
        )


def _check_stream(form: AudioForm) -> None:
    if form.stream and form.response_format not in _STREAMED:
        raise UnsupportedParameter(
            f"stream sends text as it comes and response_format {form.response_format} has times: "
            "send json or text, or stream false",
            param="stream",
        )


def _form_schema(route: RequestRoute) -> Schema:
    """Return the JSON Schema of the form."""
    rows = fields_of(route)
    properties: dict[str, Schema] = {
        "file": {"type": "string", "format": "binary"},
        "model": {"type": "string", "pattern": MODEL_NAME_PATTERN},
        "prompt": {"type": "string"},
        "response_format": {"enum": [*_FORMATS]},
        "temperature": {"type": "number", "minimum": 0, "maximum": 1},
    }
    more: Mapping[str, Schema] = {
        "language": {"type": "string"},
        "stream": {"type": "boolean"},
        f"{_GRANULARITIES}[]": {"type": "array", "items": {"enum": [*_TIMES]}},
    }
    properties |= {key: each for key, each in more.items() if key.removesuffix("[]") in rows}
    return {
        "type": "object",
        "properties": properties,
        "required": ["file", "model"],
        "additionalProperties": False,
    }
