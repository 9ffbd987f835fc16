"""Handler for requests to speak: a text is cut into pieces, which share a queue with others'.

Runs on the event loop. Samples become a sound file piece by piece: WAV and PCM of 16 bits are
written here; libsndfile writes FLAC, MP3 and Opus.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import struct
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from model_server.loading.audio.loaded_synthesizer import (
    LoadedSynthesizer,
    SpeechPiece,
    SpokenPiece,
)
from model_server.serving.admission import Admission
from model_server.serving.batch_servable import BatchServable
from model_server.serving.passes.batch_calls import BatchCalls
from model_server.serving.query_cost import BatchCost
from model_server.serving.servables import Servables
from model_server.sharing.audio.resampler import Resampler
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.format import quoted, shortened
from sax.speech import PCM_RATE, SoundFormat, SpeechRequest, SpokenPart

SPEAK = "am.speak"
_LEAST, _MOST = 60, 200  # characters of a piece; of slow speech fewer, which last as long
_MESSAGE = 1 << 20  # bytes of a part, well below what a gRPC message may hold
_SHOWN_VOICES = 12

Speaker = BatchServable[LoadedSynthesizer]


class SpeechCalls(BatchCalls[LoadedSynthesizer]):
    def __init__(self, servables: Servables, admission: Admission, seed: int | None = None) -> None:
        """seed: of requests without one; None: drawn for each."""
        super().__init__(servables, admission, LoadedSynthesizer)
        self._seed = seed

    async def speak(
        self, request: SpeechRequest, cost: BatchCost | None = None
    ) -> AsyncGenerator[SpokenPart, None]:
        """Yield the bytes of a sound file, piece by piece, and add the device time to the cost.

        Raises InvalidRequest for a text that cannot be spoken, a voice that the model does not
        have or a model of another kind, UnsupportedParameter for a format that needs soundfile
        without it, PermissionDenied, NotLoaded, QueueFull, ShuttingDown.
        """
        if request.seed is None and self._seed is not None:
            request = replace(request, seed=self._seed)
        with self._request(request.model_id, SPEAK) as servable:
            async with aclosing(spoken(servable, request, cost)) as parts:
                async for part in parts:
                    yield part


async def spoken(
    speaker: Speaker, request: SpeechRequest, cost: BatchCost | None = None
) -> AsyncGenerator[SpokenPart, None]:
    """Yield the bytes of a sound file; closing the generator drops the pieces that are left.

    Raises as `SpeechCalls.speak`.
    """
    loaded = speaker.loaded
    with speaker.request():
        pieces = await asyncio.to_thread(lambda: [*text_pieces(loaded, request)])
        at_once = request.whole or len(pieces) == 1
        encoder = SoundWriter(request.format, loaded.rate, at_once=at_once)
        for piece in pieces:
            answer = await speaker.ask(piece, cost)
            if not isinstance(answer, SpokenPiece):
                raise _too_long(loaded, request)
            last = piece is pieces[-1]
            data = await asyncio.to_thread(_encoded, encoder, answer, last)
            yield SpokenPart(
                data=data[:_MESSAGE],
                tokens=len(piece.tokens),
                frames=answer.frames,
                duration=len(answer.samples) / loaded.rate,
            )
            for start in range(_MESSAGE, len(data), _MESSAGE):
                yield SpokenPart(data=data[start : start + _MESSAGE])


def _encoded(encoder: SoundWriter, piece: SpokenPiece, last: bool) -> bytes:
    data = encoder.feed(piece.samples)
    return data + encoder.finish() if last else data


def text_pieces(loaded: LoadedSynthesizer, request: SpeechRequest) -> Iterator[SpeechPiece]:
    """Yield the pieces of a text, each in the model's tokens.

    Raises InvalidRequest for an unknown voice, and for a text of which nothing can be spoken.
    """
    speaker = voice_of(loaded, request)
    seed = secrets.randbits(32) if request.seed is None else request.seed
    slow = min(1.0, request.speed)
    index = 0
    most = min(round(_MOST * slow), loaded.buckets.tokens[-1] // 2)
    for text in pieces_of(request.text, min(round(_LEAST * slow), most), most):
        for tokens in _tokens(loaded, text):
            yield SpeechPiece(tokens, speaker, request.speed, seed, index)
            index += 1
    if not index:
        raise InvalidRequest(
            f"input {shortened(request.text)!r} has no character that this model can speak",
            param="input",
        )


def _tokens(loaded: LoadedSynthesizer, text: str) -> Iterator[tuple[int, ...]]:
    """Yield the tokens of a piece, in halves if it has more than any program takes."""
    tokens = tuple(loaded.tokenizer.tokens(text))
    if len(tokens) > loaded.buckets.tokens[-1]:
        middle = len(text) // 2
        yield from _tokens(loaded, text[:middle])
        yield from _tokens(loaded, text[middle:])
    elif tokens:
        yield tokens


def voice_of(loaded: LoadedSynthesizer, request: SpeechRequest) -> int:
    """Return the speaker of a voice. Raises InvalidRequest."""
    names = [*loaded.voices]
    found = loaded.voices.get(request.voice or names[0])
    if found is None:
        known = ", ".join(names[:_SHOWN_VOICES])
        more = ", ..." if len(names) > _SHOWN_VOICES else ""
        raise InvalidRequest(
            f"voice {quoted(request.voice)} is not one of {request.model_id} ({known}{more}): send "
            "one of these, or publish it with the override VOICES, which names its speakers",
            param="voice",
        )
    return found


def _too_long(loaded: LoadedSynthesizer, request: SpeechRequest) -> InvalidRequest:
    seconds = loaded.buckets.frames[-1] * loaded.frame / loaded.rate
    return InvalidRequest(
        f"a piece of input of at most {round(_MOST * min(1.0, request.speed))} characters would "
        f"last longer than {seconds:.0f} s at speed {request.speed:g}: send a higher speed, or "
        "shorter sentences",
        param="speed",
    )


# With what closes a quotation behind them; a line's end is one, too. Full stops of Chinese and
# Japanese, the danda, and those of Arabic and Urdu need no space behind them.
_SENTENCE = re.compile(
    r"""[.!?\u2026]+["'\u2019\u201d)\]]*\s+|[\u3002\uff01\uff1f\u0964\u061f\u06d4]\s*|\n+"""
)
_CLAUSE = re.compile(r"[,;:\u2014\u060c\u3001\uff0c]\s*|\s[-\u2013]\s")
_SPACE = re.compile(r"\s+")


def pieces_of(text: str, least: int, most: int) -> Iterator[str]:
    """Yield pieces that are together the text, each of at most `most` characters.

    A piece ends with the first sentence that ends behind `least` characters; in a longer sentence
    with its last clause, else its last word, that still fits, else anywhere.
    """
    while len(text) > most or _ends(_SENTENCE, text[:most], least):
        end = _end(text[:most], least)
        if end >= len(text):
            break
        yield text[:end]
        text = text[end:]
    if text:
        yield text


def _end(text: str, least: int) -> int:
    """Return where a piece from the start of a text ends."""
    if ends := _ends(_SENTENCE, text, least):
        return ends[0]
    for kind in (_SENTENCE, _CLAUSE, _SPACE):
        if ends := _ends(kind, text, 1):
            return ends[-1]
    return len(text)


def _ends(kind: re.Pattern[str], text: str, least: int) -> list[int]:
    return [found.end() for found in kind.finditer(text) if found.end() >= least]


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
