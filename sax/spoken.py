"""Requests for speech, and what comes back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from sax.errors import InvalidRequest, UnsupportedParameter
from sax.fields.table import SPEECH_CHARACTERS
from sax.format import quoted

SoundFormat = Literal["mp3", "opus", "flac", "wav", "pcm"]
FORMATS: tuple[SoundFormat, ...] = ("mp3", "opus", "flac", "wav", "pcm")
PCM_RATE = 24_000  # samples a second of pcm, which has no header: OpenAI's


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechRequest:
    """A text to speak."""

    model_id: str
    text: str  # at most SPEECH_CHARACTERS
    voice: str = ""  # a name or number of a speaker; "": the first
    format: SoundFormat = "wav"
    speed: float = 1.0  # from 0.25 to 4
    seed: int | None = None  # u32; the same one gives the same sound; None: the server draws one
    # True: the sound comes when it is complete, and its header has its length. False: as it is
    # spoken, and the header of one in several pieces has none.
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenPart:
    """Bytes of a sound file, and of which piece of the text."""

    data: bytes
    tokens: int = 0  # of the piece, with its first bytes
    frames: int = 0  # that the model made for it
    duration: float = 0.0  # seconds


def check_speech(text: str, format: str) -> None:
    """Raise InvalidRequest for an empty or too long text, and UnsupportedParameter for a format
    that is not written here."""
    if not text.strip() or len(text) > SPEECH_CHARACTERS:
        raise InvalidRequest(
            f"input has {len(text)} characters: send 1 to {SPEECH_CHARACTERS} that are not only "
            "white space",
            param="input",
        )
    if format not in FORMATS:
        raise UnsupportedParameter(
            f"response_format {quoted(format)} is not supported: send {', '.join(FORMATS)}",
            param="response_format",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeSound:
    """A sound file."""

    data: bytes
    tokens: int
    frames: int
    duration: float  # seconds


def whole_sound(parts: Iterable[SpokenPart]) -> WholeSound:
    """Join the parts of one sound."""
    kept = [*parts]
    return WholeSound(
        data=b"".join(each.data for each in kept),
        tokens=sum(each.tokens for each in kept),
        frames=sum(each.frames for each in kept),
        duration=sum(each.duration for each in kept),
    )
