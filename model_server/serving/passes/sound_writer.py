"""Writes samples as a sound file, piece by piece.

WAV and PCM of 16 bits are written here; libsndfile writes FLAC, MP3 and Opus.
"""

from __future__ import annotations

import struct
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from model_server.sharing.audio.resampler import Resampler
from sax.errors import UnsupportedParameter
from sax.speech import PCM_RATE, SoundFormat

_PEAK = 32767  # of 16 bits
_UNKNOWN = 0xFFFFFFFF  # a length in the header of a WAV that is still being written
_WAV_HEAD = 36  # bytes of the header behind the length of the file


class _Codec(NamedTuple):
    """How libsndfile names a format, and the rates that it has."""

    format: str
    subtype: str
    rates: tuple[int, ...]  # (): any


_CODECS: dict[SoundFormat, _Codec] = {
    "flac": _Codec("FLAC", "PCM_16", ()),
    "mp3": _Codec(
        "MP3",
        "MPEG_LAYER_III",
        (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000),
    ),
    "opus": _Codec("OGG", "OPUS", (8_000, 12_000, 16_000, 24_000, 48_000)),
}


class _Tail:
    """A file that is only ever read at its end: what is written over bytes that have been taken is
    lost, such as a length in a header."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._taken = 0
        self._at = 0

    def write(self, data: Any) -> int:
        given = bytes(data)
        kept = given[max(0, self._taken - self._at) :]
        place = max(0, self._at - self._taken)
        self._data[place : place + len(kept)] = kept
        self._at += len(given)
        return len(given)

    def seek(self, offset: int, whence: int = 0) -> int:
        start = (0, self._at, self._taken + len(self._data))[whence]
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        """libsndfile may read what it has written to change it; none of that is needed."""
        return b""

    def take(self) -> bytes:
        data = bytes(self._data)
        self._taken += len(data)
        self._data.clear()
        return data


class SoundWriter:
    """Raises UnsupportedParameter for a format that libsndfile would have to write, without it."""

    def __init__(self, format: SoundFormat, rate: int, *, at_once: bool) -> None:
        """rate: of the samples. at_once: everything comes at the end, with its length in the
        header."""
        self._format, self._at_once = format, at_once
        self._rate = _rate_of(format, rate)
        self._given = rate
        self._tail = _Tail()
        self._bytes = 0  # of samples that are written here
        self._file: Any = None
        if format in _CODECS:
            self._file = _opened(self._tail, _CODECS[format], self._rate)
        elif format == "wav":
            self._tail.write(_wav_head(self._rate, None))

    def feed(self, samples: np.ndarray) -> bytes:
        """Write a piece f32[N] from -1 to 1; return the bytes that are ready."""
        resampler = Resampler(self._given, self._rate)
        samples = np.concatenate([resampler.feed(samples), resampler.flush()])
        whole = np.rint(np.clip(samples, -1.0, 1.0) * _PEAK).astype("<i2")
        if self._file is None:
            self._bytes += self._tail.write(whole.tobytes())
        else:
            self._file.write(whole)
        return b"" if self._at_once else self._tail.take()

    def finish(self) -> bytes:
        """Return the rest."""
        if self._file is not None:
            self._file.close()
        elif self._format == "wav" and self._at_once:
            self._tail.seek(0)
            self._tail.write(_wav_head(self._rate, self._bytes))
        return self._tail.take()


def _rate_of(format: SoundFormat, rate: int) -> int:
    """Return the rate of a file: the samples' own, unless the format has others."""
    if format == "pcm":
        return PCM_RATE
    rates = _CODECS[format].rates if format in _CODECS else ()
    return rate if not rates or rate in rates else (24_000 if rate <= 24_000 else 48_000)


def _opened(tail: _Tail, codec: _Codec, rate: int) -> Any:
    if find_spec("soundfile") is None:
        raise UnsupportedParameter(
            f"response_format: {codec.format} needs soundfile on the model server, which is not "
            "installed (pip install '.[media]'): send wav or pcm",
            param="response_format",
        )
    soundfile = import_module("soundfile")
    return soundfile.SoundFile(
        tail, "w", samplerate=rate, channels=1, format=codec.format, subtype=codec.subtype
    )


def _wav_head(rate: int, size: int | None) -> bytes:
    """size: bytes of samples; None: not known yet."""
    file, data = (_UNKNOWN, _UNKNOWN) if size is None else (_WAV_HEAD + size, size)
    kind = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16)
    return struct.pack("<4sI4s", b"RIFF", file, b"WAVE") + kind + struct.pack("<4sI", b"data", data)
