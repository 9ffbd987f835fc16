"""Decodes sounds in processes of their own, so that no sound can hold up the server or break it."""

from __future__ import annotations

from concurrent.futures import Future
from functools import cache
from typing import NamedTuple

import numpy as np

from model_server.loading.decoding_lanes import LANES, WAITING, DecodingLanes, InputKind
from model_server.sharing.audio.frames import SoundAnswer, SoundAsk, SoundForm
from model_server.sharing.audio.process import SoundProcess


class DecodedSound(NamedTuple):
    mels: np.ndarray  # f32[frames, bins]
    samples: int  # at 16 kHz, without the silence after them


def _read(ask: SoundAsk, answer: SoundAnswer) -> DecodedSound:
    mels = np.frombuffer(answer.spectrogram, np.float32)
    return DecodedSound(mels.reshape(-1, ask.form.bins), answer.samples)


_SOUNDS = InputKind(name="sound", param="file", retry_s=2.0, process=SoundProcess, read=_read)


class SoundDecoder:
    """Thread-safe. Its processes start with the first sounds and end with this one."""

    def __init__(self, lanes: int = LANES, waiting: int = WAITING) -> None:
        """waiting: bytes of sounds that may wait."""
        self._lanes = DecodingLanes(_SOUNDS, lanes, waiting)

    def submit(self, sound: bytes, form: SoundForm) -> Future[DecodedSound]:
        """Decode a sound. Raises QueueFull; the future raises InvalidRequest for a bad sound, and
        Unavailable.
        """
        return self._lanes.submit(SoundAsk(sound, form), len(sound))


@cache
def sound_decoder() -> SoundDecoder:
    """Return the decoder of this process."""
    return SoundDecoder()
