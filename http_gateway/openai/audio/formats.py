"""Transcripts as OpenAI's response formats: JSON with and without times, text and subtitles."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, Literal, NotRequired, TypedDict

import msgspec

from http_gateway.openapi import JSON
from sax.speech.languages import name_of
from sax.speech.transcripts import Segment, WholeTranscript

_PLAIN = "text/plain; charset=utf-8"
_SUBTITLES = {"srt": "application/x-subrip; charset=utf-8", "vtt": "text/vtt; charset=utf-8"}


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
            return msgspec.json.encode(_brief(transcript)), JSON


def usage_of(transcript: WholeTranscript) -> DurationUsage:
    return {"type": "duration", "seconds": math.ceil(transcript.duration)}


def _brief(transcript: WholeTranscript) -> TranscriptReply:
    return {"text": transcript.text, "usage": usage_of(transcript)}


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


REPLIES: dict[str, Any] = {
    JSON: TranscriptReply,
    "text/plain": str,
    "text/vtt": str,
    "application/x-subrip": str,
}
