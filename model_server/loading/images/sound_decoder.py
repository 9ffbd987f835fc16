"""Decodes sounds in processes of their own, so that no sound can hold up the server or break it."""

from __future__ import annotations

import importlib.util
from concurrent.futures import Future
from functools import cache
from typing import NamedTuple

import numpy as np

from model_server.loading.decoding_lanes import LANES, WAITING, DecodingLanes, InputKind
from model_server.sharing.audio.process import SoundAnswer, SoundAsk, SoundForm, SoundProcess
from sax.distribution import how_to_install
from sax.errors import LoadFailed


class DecodedSound(NamedTuple):
    mels: np.ndarray  # f32[frames, bins]; of a form without bins the samples, f32[n]
    samples: int  # at 16 kHz, without the silence after them


def _read(ask: SoundAsk, answer: SoundAnswer) -> DecodedSound:
    mels, bins = np.frombuffer(answer.spectrogram, np.float32), ask.form.bins
    return DecodedSound(mels.reshape(-1, bins) if bins else mels, answer.samples)


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


def check_soundfile(otherwise: str = "") -> None:
    """Raise LoadFailed if nothing can decode sounds here. otherwise: what can be done instead."""
    if importlib.util.find_spec("soundfile") is None:
        raise LoadFailed(
            "models of sounds need the package soundfile, which decodes them, and it is not "
            f"installed here: {how_to_install('media')}{otherwise}"
        )


@cache
def sound_decoder() -> SoundDecoder:
    """Return the decoder of this process."""
    return SoundDecoder()
