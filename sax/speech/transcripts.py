"""Requests for transcripts, and what comes back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptRequest:
    """A sound to write down."""

    model_id: str
    sound: bytes  # a WAV, FLAC, MP3 or Ogg file
    language: str = ""  # code or English name; "": the one that is heard
    translate: bool = False  # into English
    prompt: str = ""  # text that comes before
    temperature: float = 0.0  # 0: greedy, and warmer where that fails
    words: bool = False  # with the times of each word


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedWord:
    """A word with the punctuation at it."""

    start: float  # seconds
    end: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Words between two timestamps."""

    start: float  # seconds
    end: float
    text: str
    tokens: tuple[int, ...] = ()  # with timestamps
    seek: int = 0  # where its window begins, in 10 ms
    temperature: float = 0.0
    avg_logprob: float = 0.0  # of the window's tokens
    compression_ratio: float = 0.0  # of the window's text
    no_speech_prob: float = 0.0  # of the window
    words: tuple[TimedWord, ...] = ()  # if they were asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptPart:
    """Transcript of one window; the first part comes before any window and tells the duration."""

    segments: tuple[Segment, ...] = ()
    language: str = ""  # code; "": not known yet
    duration: float = 0.0  # seconds of the sound


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeTranscript:
    """Transcript of a sound."""

    segments: tuple[Segment, ...]
    language: str  # code
    duration: float  # seconds

    @property
    def text(self) -> str:
        return "".join(each.text for each in self.segments).strip()

    @property
    def score(self) -> float:
        """Mean log-probability of a token; 0 for silence."""
        tokens = sum(len(each.tokens) for each in self.segments)
        total = sum(len(each.tokens) * each.avg_logprob for each in self.segments)
        return total / tokens if tokens else 0.0


def whole_transcript(parts: Iterable[TranscriptPart]) -> WholeTranscript:
    """Join the parts of one transcript."""
    segments: list[Segment] = []
    language, duration = "", 0.0
    for part in parts:
        segments += part.segments
        language, duration = part.language or language, part.duration or duration
    return WholeTranscript(segments=tuple(segments), language=language, duration=duration)
