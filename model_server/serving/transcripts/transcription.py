"""Writes down a sound window by window; each begins where the timestamps of the last one end."""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from threading import Event

import numpy as np

from model_server.loading.audio.loaded_audio import LoadedAudio, SpeechWindow, WrittenWindow
from model_server.serving.transcripts.segments import STEP_S, Piece, cut
from model_server.serving.transcripts.thresholds import (
    FORGETS_ABOVE,
    Judged,
    judged,
    temperatures_of,
)
from model_server.sharing.audio.process import FRAMES_A_SECOND
from sax.errors import InvalidRequest
from sax.speech.languages import code_of
from sax.speech.transcripts import Segment, TranscriptPart, TranscriptRequest

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
        """Raises InvalidRequest for a language or a task that the model does not know."""
        self.language, self.task = self._language(), self._task()
        prompt = self.request.prompt.strip()
        self.before = self.loaded.tokenizer.encode(f" {prompt}", add_bos=False) if prompt else []

    async def parts(self, mels: np.ndarray, frames: int) -> AsyncGenerator[TranscriptPart, None]:
        """Yield what each window says. mels: f32[F, bins], of which `frames` are sound."""
        seek = 0
        while seek < frames:
            given = min(self.loaded.frames, frames - seek)
            best = await self._best(mels[seek : seek + self.loaded.frames], seek)
            self.language = best.window.language
            if best.is_silence:
                seek += given
                continue
            pieces, advance = cut(best.window.tokens, self.loaded.tokens.timestamps, given)
            kept = [each for each in pieces if each.end > each.start and self._text(each)]
            self._remember(kept, best.temperature)
            segments = tuple(self._segment(each, seek, frames, best) for each in kept)
            yield TranscriptPart(segments=segments, language=self.code)
            seek += advance

    @property
    def code(self) -> str:
        """Code of the language; "" if it is not known yet."""
        languages = self.loaded.tokens.languages
        if not languages:
            return "en"
        return next((code for code, token in languages.items() if token == self.language), "")

    async def _best(self, mels: np.ndarray, seek: int) -> Judged:
        """Try warmer until an answer is good; the last one stands."""
        temperatures = temperatures_of(self.request.temperature)
        for temperature in temperatures[:-1]:
            tried = await self._tried(mels, seek, temperature)
            if not tried.is_bad:
                return tried
        return await self._tried(mels, seek, temperatures[-1])

    async def _tried(self, mels: np.ndarray, seek: int, temperature: float) -> Judged:
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
        )
        written = await self.ask(window)
        return judged(written, self._decoded(written.tokens), temperature)

    def _remember(self, pieces: list[Piece], temperature: float) -> None:
        self.before += [token for piece in pieces for token in piece.tokens]
        if temperature > FORGETS_ABOVE:
            self.before = []
        self.before = self.before[-self.loaded.context :]

    def _segment(self, piece: Piece, seek: int, frames: int, best: Judged) -> Segment:
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
        )

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


def least_duration(samples: int, rate: int) -> float:
    """Return the seconds of a sound, to the next timestamp."""
    return max(STEP_S, round(samples / rate, 2))
