"""Handler for requests to speak: a text is cut into pieces, which share a queue with others'.

Runs on the event loop.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import replace

from model_server.loading.audio.loaded_synthesizer import (
    LoadedSynthesizer,
    SpeechPiece,
    SpokenPiece,
)
from model_server.serving.admission import Admission
from model_server.serving.batch_servable import BatchServable
from model_server.serving.passes.batch_calls import BatchCalls
from model_server.serving.passes.sound_writer import SoundWriter
from model_server.serving.query_cost import BatchCost
from model_server.serving.servables import Servables
from sax.errors import InvalidRequest
from sax.format import quoted, shortened
from sax.speech import SpeechRequest, SpokenPart

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
