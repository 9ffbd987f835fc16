"""A process that decodes sounds: the server's end, and the messages between the two."""

from __future__ import annotations

from typing import Literal

import msgspec

from model_server.sharing.confined.pipe import framed
from model_server.sharing.confined.process import ConfinedProcess

RATE = 16_000  # samples a second of what models take
HOP = 160  # samples between frames of a spectrogram: 10 ms
FRAMES_A_SECOND = RATE // HOP


class RefusedSound(Exception):
    """The text ends a sentence that begins "the sound"."""


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


SECONDS = 60.0  # of processor time for one sound: two hours of MP3 take a third of it
_WALL_S = 180.0  # for one sound, on a machine too busy to give the process its processor time
_MOST = 1 << 30  # bytes of an answer: far above two hours
_WORKER = "model_server.sharing.audio.worker"
_DECODER = msgspec.msgpack.Decoder(SoundAnswer)


class SoundProcess(ConfinedProcess):
    def __init__(self, seconds: float = SECONDS) -> None:
        """`seconds`: processor time for one sound."""
        super().__init__(
            _WORKER, seconds, 5, doing="decodes it", most=_MOST, wall_s=max(_WALL_S, seconds)
        )

    def answer(self, ask: SoundAsk) -> SoundAnswer:
        """Raises ProcessEnded, ProcessStarved, OSError."""
        return self.exchange(framed(msgspec.msgpack.encode(ask)), _DECODER.decode)
