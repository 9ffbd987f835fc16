"""Decodes sounds in processes of their own, so that no sound can hold up the server or break it.

A few lanes, each a thread and a process that decode one sound after the other. A process ends after
a sound that exceeded a limit, and when it has had nothing to do for a while.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from concurrent.futures import Future
from functools import cache
from queue import Empty, SimpleQueue
from typing import NamedTuple

import numpy as np

from model_server.sharing.audio.frames import SoundAsk, SoundForm
from model_server.sharing.audio.process import SoundProcess
from model_server.sharing.confined.process import ProcessEnded
from sax.errors import InvalidRequest, LoadFailed, QueueFull, Unavailable

_IDLE_S = 60.0
_LANES = 4
_WAITING = 256 << 20  # bytes of sounds that may wait
_RETRY_S = 2.0
_PARAM = "file"


class DecodedSound(NamedTuple):
    mels: np.ndarray  # f32[frames, bins]; of a form without bins the samples, f32[n]
    samples: int  # at 16 kHz, without the silence after them


class _WaitingSound(NamedTuple):
    ask: SoundAsk
    decoded: Future[DecodedSound]


class SoundDecoder:
    """Thread-safe. Its processes start with the first sounds and end with this one."""

    def __init__(self, lanes: int = _LANES, waiting: int = _WAITING) -> None:
        """waiting: bytes of sounds that may wait."""
        self._sounds: SimpleQueue[_WaitingSound] = SimpleQueue()
        self._lock = threading.Lock()
        self._lanes = lanes
        self._started = 0
        self._most, self._held = waiting, 0

    def submit(self, sound: bytes, form: SoundForm) -> Future[DecodedSound]:
        """Decode a sound. Raises QueueFull; the future raises InvalidRequest for a bad sound, and
        Unavailable.
        """
        self._enter(len(sound))
        waiting = _WaitingSound(SoundAsk(sound, form), Future())
        waiting.decoded.add_done_callback(lambda _: self._leave(len(sound)))
        self._sounds.put(waiting)
        return waiting.decoded

    def _enter(self, size: int) -> None:
        with self._lock:
            if self._held and self._held + size > self._most:
                raise QueueFull(
                    f"{self._held >> 20} MiB of sounds wait to be decoded, which is all that this "
                    f"server holds; retry in {_RETRY_S:.0f} s",
                    retry_after_s=_RETRY_S,
                )
            self._held += size
            if self._started < self._lanes:  # one more for each sound, until all are there
                self._started += 1
                threading.Thread(target=self._run, name="sounds", daemon=True).start()

    def _leave(self, size: int) -> None:
        with self._lock:
            self._held -= size

    def _run(self) -> None:
        process = SoundProcess()
        while True:
            try:
                sound = self._sounds.get(timeout=_IDLE_S)
            except Empty:
                process.stop()
                sound = self._sounds.get()
            if sound.decoded.set_running_or_notify_cancel():
                _decode(process, sound)
            del sound  # keep none alive while waiting


def _decode(process: SoundProcess, sound: _WaitingSound) -> None:
    try:
        sound.decoded.set_result(_decoded(process, sound.ask))
    except Exception as exc:
        sound.decoded.set_exception(exc)


def _decoded(process: SoundProcess, ask: SoundAsk) -> DecodedSound:
    try:
        answer = process.answer(ask)
    except ProcessEnded as exc:
        raise InvalidRequest(f"the sound cannot be decoded: it {exc}", param=_PARAM) from exc
    except OSError as exc:
        raise Unavailable(f"no process can be started to decode sounds: {exc}") from exc
    if answer.kind == "runaway":
        process.stop()  # its memory may be full
    if answer.kind != "spectrogram":
        raise InvalidRequest(f"the sound {answer.text}", param=_PARAM)
    mels = np.frombuffer(answer.spectrogram, np.float32)
    bins = ask.form.bins
    return DecodedSound(mels.reshape(-1, bins) if bins else mels, answer.samples)


def check_soundfile(otherwise: str = "") -> None:
    """Raise LoadFailed if nothing can decode sounds here. otherwise: what can be done instead."""
    if importlib.util.find_spec("soundfile") is None:
        raise LoadFailed(
            "models of sounds need the package soundfile, which decodes them, and it is not "
            f"installed here: pip install '.[media]' in a clone of sax{otherwise}"
        )


@cache
def sound_decoder() -> SoundDecoder:
    """Return the decoder of this process."""
    return SoundDecoder(min(_LANES, os.cpu_count() or 1))
