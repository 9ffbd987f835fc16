"""Handler for requests with sounds: each is decoded in another process; windows share a queue.

Runs on the event loop.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from threading import Event
from typing import NamedTuple

import numpy as np

from model_server.loading.audio.loaded_audio import LoadedAudio, SpeechWindow, WrittenWindow
from model_server.loading.images.decoders import DecodedSound, SoundDecoder, sound_decoder
from model_server.loading.loaded_batches import ONLY
from model_server.models.audio.alignment import times_of, words_of
from model_server.serving.admission import Admission
from model_server.serving.batch_servable import BatchServable
from model_server.serving.passes.batch_calls import BatchCalls
from model_server.serving.query_cost import BatchCost
from model_server.serving.servables import Servables
from model_server.sharing.audio.process import FRAMES_A_SECOND, HOP, RATE
from sax.errors import InvalidRequest, QueueFull
from sax.speech import (
    Segment,
    TimedWord,
    TranscriptPart,
    TranscriptRequest,
    WholeTranscript,
    code_of,
    whole_transcript,
)

RECOGNIZE, TRANSCRIBE = "am.recognize", "am.transcribe"
_MOST_HELD = 2 << 30  # bytes of spectrograms of sounds on their way to one model
_RETRY_S = 5.0

Ear = BatchServable[LoadedAudio]
TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
_MOST_COMPRESSED = 2.4  # more: the text repeats itself
_LEAST_LOGPROB = -1.0  # mean of a token; less: the model does not believe it
_SILENCE = 0.6  # probability of no speech
_FORGETS_ABOVE = 0.5  # temperature of a text that is no guide to what follows


class AudioCalls(BatchCalls[LoadedAudio]):
    def __init__(self, servables: Servables, admission: Admission) -> None:
        super().__init__(servables, admission, LoadedAudio)

    async def transcribe(
        self, request: TranscriptRequest, cost: BatchCost | None = None, method: str = TRANSCRIBE
    ) -> AsyncGenerator[TranscriptPart, None]:
        """Yield the duration of a sound, then what it says, window by window, and add the device
        time to the cost.

        Raises InvalidRequest for a bad sound, a language that the model does not know, or a model
        of another kind, PermissionDenied, NotLoaded, QueueFull, ShuttingDown, Unavailable.
        """
        with self._request(request.model_id, method) as servable:
            async with aclosing(transcribed(servable, request, cost)) as parts:
                async for part in parts:
                    yield part

    async def recognize(
        self, request: TranscriptRequest, cost: BatchCost | None = None
    ) -> WholeTranscript:
        """Return what a sound says. Raises as `transcribe`."""
        async with aclosing(self.transcribe(request, cost, RECOGNIZE)) as parts:
            return whole_transcript([part async for part in parts])


async def transcribed(
    ear: Ear,
    request: TranscriptRequest,
    cost: BatchCost | None = None,
    decoder: SoundDecoder | None = None,
) -> AsyncGenerator[TranscriptPart, None]:
    """Yield the sound's duration, then what each window says, and add to the cost. Closing the
    generator frees what the sound holds, its window within some steps.

    decoder: None: the process's own. Raises InvalidRequest for a bad sound or language, QueueFull,
    NotLoaded, Unavailable.
    """

    async def ask(window: SpeechWindow) -> WrittenWindow:
        return await ear.ask(window, cost)

    decoder = decoder or sound_decoder()
    with _entered(ear):
        on_way = Transcription(ear.loaded, request, ask)
        sound = await asyncio.wrap_future(decoder.submit(request.sound, ear.loaded.form))
        with _holding(ear, sound):
            duration = _least_duration(sound.samples, RATE)
            yield TranscriptPart(duration=duration, language=on_way.code)
            frames = min(len(sound.mels), -(-sound.samples // HOP))
            try:
                async with aclosing(on_way.parts(sound.mels, frames)) as parts:
                    async for part in parts:
                        yield part
            finally:
                on_way.gone.set()


@contextmanager
def _entered(ear: Ear) -> Iterator[None]:
    batching = ear.loaded.batching[ONLY]
    if ear.inside >= batching.queue + batching.most:
        raise _full(ear, f"{ear.inside} sounds are on their way")
    with ear.request():
        yield


@contextmanager
def _holding(ear: Ear, sound: DecodedSound) -> Iterator[None]:
    size = sound.mels.nbytes
    if ear.held and ear.held + size > _MOST_HELD:
        raise _full(ear, f"sounds of {ear.held >> 20} MiB are on their way")
    ear.held += size
    try:
        yield
    finally:
        ear.held -= size


def _full(ear: Ear, why: str) -> QueueFull:
    return QueueFull(
        f"this replica is full ({why} for {ear.model_id}); retry in {_RETRY_S:.0f} s",
        retry_after_s=_RETRY_S,
    )


class Judged(NamedTuple):
    """A window's answer and what speaks for and against it."""

    window: WrittenWindow
    text: str
    temperature: float
    avg_logprob: float
    compression_ratio: float

    @property
    def is_silence(self) -> bool:
        return self.window.no_speech > _SILENCE and self.avg_logprob < _LEAST_LOGPROB

    @property
    def is_bad(self) -> bool:
        repeats = self.compression_ratio > _MOST_COMPRESSED
        return (repeats or self.avg_logprob < _LEAST_LOGPROB) and not self.is_silence


def judged(window: WrittenWindow, text: str, temperature: float) -> Judged:
    mean = window.logprob / (len(window.tokens) + 1)
    return Judged(window, text, temperature, mean, compression_ratio(text))


def compression_ratio(text: str) -> float:
    """Return how many times shorter zlib makes a text; 0 for none."""
    plain = text.encode(errors="replace")
    return len(plain) / len(zlib.compress(plain)) if plain else 0.0


def temperatures_of(temperature: float) -> tuple[float, ...]:
    """Return those to try in turn: a caller's own only, or for 0 warmer ones, too."""
    return (temperature,) if temperature else TEMPERATURES


_FRAMES_A_STEP = 2  # of the spectrogram between two timestamps
_STEP_S = 0.02


class Piece(NamedTuple):
    start: float  # seconds after the window's start
    end: float
    tokens: tuple[int, ...]  # with timestamps


class CutWindow(NamedTuple):
    pieces: list[Piece]
    frames: int  # from this window's start to the next one's


def cut(tokens: Sequence[int], first_timestamp: int, frames: int) -> CutWindow:
    """Cut a window's answer; frames: of sound in the window."""
    times = [token >= first_timestamp for token in tokens]
    pairs = [at for at in range(1, len(tokens)) if times[at - 1] and times[at]]
    if not pairs:
        return CutWindow([_whole(tokens, first_timestamp, frames)], frames)
    ends_alone = times[-2:] == [False, True]  # no speech after the last timestamp
    ends = [*pairs, len(tokens)] if ends_alone else pairs
    pieces = [
        Piece(
            (tokens[begin] - first_timestamp) * _STEP_S,
            (tokens[end - 1] - first_timestamp) * _STEP_S,
            tuple(tokens[begin:end]),
        )
        for begin, end in zip([0, *ends], ends, strict=False)
    ]
    if ends_alone:
        return CutWindow(pieces, frames)
    advance = (tokens[pairs[-1] - 1] - first_timestamp) * _FRAMES_A_STEP
    return CutWindow(pieces, advance if 0 < advance <= frames else frames)


def _whole(tokens: Sequence[int], first_timestamp: int, frames: int) -> Piece:
    """Return the only segment: to its last timestamp, or to the window's end."""
    last = max((token for token in tokens if token >= first_timestamp), default=first_timestamp)
    steps = last - first_timestamp or frames // _FRAMES_A_STEP
    return Piece(0.0, steps * _STEP_S, tuple(tokens))


Ask = Callable[[SpeechWindow], Awaitable[WrittenWindow]]

_SHOWN_LANGUAGES = 12


@dataclass(slots=True)
class Transcription:
    """One sound on its way; `parts` runs once."""

    loaded: LoadedAudio
    request: TranscriptRequest
    ask: Ask
    language: int | None = field(init=False)  # token
    task: int | None = field(init=False)  # token
    before: list[int] = field(init=False)  # tokens of the text so far that still guides
    gone: Event = field(default_factory=Event)

    def __post_init__(self) -> None:
        """Raises InvalidRequest for a language, a task or times that the model does not know."""
        self.language, self.task = self._language(), self._task()
        if self.request.words and not self.loaded.times_words:
            raise InvalidRequest(
                f"{self.request.model_id} gives no times of words: its generation_config.json has "
                "no alignment_heads; ask for those of segments",
                param="timestamp_granularities",
            )
        prompt = self.request.prompt.strip()
        self.before = self.loaded.tokenizer.encode(f" {prompt}", add_bos=False) if prompt else []

    async def parts(self, mels: np.ndarray, frames: int) -> AsyncGenerator[TranscriptPart, None]:
        """Yield what each window says. mels: f32[F, bins], of which `frames` are sound."""
        seek = 0
        while seek < frames:
            given = min(self.loaded.frames, frames - seek)
            best = await self._best(mels[seek : seek + self.loaded.frames], seek, given)
            self.language = best.window.language
            if best.is_silence:
                seek += given
                continue
            pieces, advance = cut(best.window.tokens, self.loaded.tokens.timestamps, given)
            words = await self._words(pieces, best.window, seek)
            kept = [
                (piece, said)
                for piece, said in zip(pieces, words, strict=True)
                if piece.end > piece.start and self._text(piece)
            ]
            self._remember([piece for piece, _ in kept], best.temperature)
            segments = tuple(self._segment(*each, seek, frames, best) for each in kept)
            yield TranscriptPart(segments=segments, language=self.code)
            seek += advance

    @property
    def code(self) -> str:
        """Code of the language; "" if it is not known yet."""
        languages = self.loaded.tokens.languages
        if not languages:
            return "en"
        return next((code for code, token in languages.items() if token == self.language), "")

    async def _best(self, mels: np.ndarray, seek: int, frames: int) -> Judged:
        """Try warmer until an answer is good; the last one stands. frames: of sound."""
        temperatures = temperatures_of(self.request.temperature)
        for temperature in temperatures[:-1]:
            tried = await self._tried(mels, seek, frames, temperature)
            if not tried.is_bad:
                return tried
        return await self._tried(mels, seek, frames, temperatures[-1])

    async def _tried(self, mels: np.ndarray, seek: int, frames: int, temperature: float) -> Judged:
        # The same request draws the same numbers again.
        seed = zlib.crc32(f"{seek} {temperature}".encode())
        window = SpeechWindow(
            mels=mels,
            previous=tuple(self.before),
            language=self.language,
            task=self.task,
            temperature=temperature,
            seed=seed,
            limit=self.loaded.context // 2,
            gone=self.gone,
            times=max(frames // _FRAMES_A_STEP, 1) if self.request.words else 0,
        )
        written = await self.ask(window)
        return judged(written, self._decoded(written.tokens), temperature)

    def _remember(self, pieces: list[Piece], temperature: float) -> None:
        self.before += [token for piece in pieces for token in piece.tokens]
        if temperature > _FORGETS_ABOVE:
            self.before = []
        self.before = self.before[-self.loaded.context :]

    def _segment(
        self, piece: Piece, words: tuple[TimedWord, ...], seek: int, frames: int, best: Judged
    ) -> Segment:
        offset, end = seek / FRAMES_A_SECOND, frames / FRAMES_A_SECOND
        return Segment(
            start=round(min(offset + piece.start, end), 2),
            end=round(min(offset + piece.end, end), 2),
            text=self._text(piece),
            tokens=piece.tokens,
            seek=seek,
            temperature=best.temperature,
            avg_logprob=best.avg_logprob,
            compression_ratio=best.compression_ratio,
            no_speech_prob=best.window.no_speech,
            words=words,
        )

    async def _words(
        self, pieces: Sequence[Piece], window: WrittenWindow, seek: int
    ) -> list[tuple[TimedWord, ...]]:
        """Return the words of each piece; none if they were not asked for."""
        if window.looked is None:
            return [()] * len(pieces)
        return await asyncio.to_thread(self._timed, pieces, window, seek / FRAMES_A_SECOND)

    def _timed(
        self, pieces: Sequence[Piece], window: WrittenWindow, start_s: float
    ) -> list[tuple[TimedWord, ...]]:
        assert window.looked is not None, "words were asked for"
        count = len(self._said(window.tokens))
        times = (times_of(window.looked, count) + start_s).round(2).tolist() if count else []
        made: list[tuple[TimedWord, ...]] = []
        for piece in pieces:
            said = self._said(piece.tokens)
            words = words_of(said, self.loaded.tokenizer, self.code)
            made.append(
                tuple(
                    TimedWord(start=times[word.begin], end=times[word.end], text=text)
                    for word in words
                    if (text := word.text.strip())
                )
            )
            times = times[len(said) :]
        return made

    def _said(self, tokens: Sequence[int]) -> list[int]:
        """Return the tokens of text."""
        return [token for token in tokens if token < self.loaded.tokens.end]

    def _text(self, piece: Piece) -> str:
        text = self._decoded(piece.tokens)
        return text if text.strip() else ""

    def _decoded(self, tokens: tuple[int, ...]) -> str:
        """Return the text of tokens; timestamps may be unknown to the tokenizer."""
        end = self.loaded.tokens.end
        return self.loaded.tokenizer.decode(token for token in tokens if token < end)

    def _language(self) -> int | None:
        languages, code = self.loaded.tokens.languages, code_of(self.request.language)
        if not code or (not languages and code == "en"):
            return None
        if code not in languages:
            known = ", ".join([*languages][:_SHOWN_LANGUAGES]) or "en"
            more = ", ..." if len(languages) > _SHOWN_LANGUAGES else ""
            raise InvalidRequest(
                f"language {code[:32]!r} is not one that this model knows ({known}{more})",
                param="language",
            )
        return languages[code]

    def _task(self) -> int | None:
        tasks = self.loaded.tokens.tasks
        wanted = "translate" if self.request.translate else "transcribe"
        if self.request.translate and wanted not in tasks:
            raise InvalidRequest(
                f"{self.request.model_id} hears English only and does not translate: ask a "
                "multilingual model",
                param="model",
            )
        return tasks.get(wanted)


def _least_duration(samples: int, rate: int) -> float:
    """Return the seconds of a sound, to the next timestamp."""
    return max(_STEP_S, round(samples / rate, 2))
