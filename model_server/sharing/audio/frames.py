"""Messages between a server and the process that decodes sounds."""

from __future__ import annotations

from typing import Literal

import msgspec

RATE = 16_000  # samples a second of what models take
HOP = 160  # samples between frames of a spectrogram: 10 ms
FRAMES_A_SECOND = RATE // HOP


class SoundForm(msgspec.Struct, frozen=True, array_like=True):
    """The spectrogram that a model takes, or the samples alone."""

    bins: int  # 0: the samples, f32[n]
    least_frames: int  # of a shorter sound's, which ends in silence
    most_seconds: int  # of a sound


class SoundAsk(msgspec.Struct, frozen=True, array_like=True):
    """Decode one sound."""

    sound: bytes
    form: SoundForm


class SoundAnswer(msgspec.Struct, frozen=True, array_like=True):
    kind: Literal["spectrogram", "refused", "runaway"]
    spectrogram: bytes = b""  # f32[frames, bins], or f32[n]
    samples: int = 0  # of the sound, without the silence after it
    text: str = ""  # the end of a sentence that begins "the sound"
