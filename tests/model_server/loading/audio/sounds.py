"""Golden sounds: loaded models of them, and what transformers computes."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model_server.loading.audio.loaded_audio import LoadedAudio, SpeechWindow, WrittenWindow
from model_server.loading.loader import ModelLoader
from model_server.serving.passes.sounds import Transcription
from model_server.sharing.audio.spectrogram import spectrogram
from sax.speech import TranscriptRequest
from tests.model_server.loading.loads import quiet, spec_of
from tests.tools.golden.sounds import CASES, HERE, sound_of, teacher_tokens


def load(loader: ModelLoader, checkpoint: Path | str, path: str = "auto", **values: Any) -> Any:
    overrides = {key: json.dumps(value) for key, value in values.items()}
    return loader(spec_of(checkpoint, path, **overrides), quiet)


def golden_of(name: str) -> dict[str, np.ndarray]:
    with np.load(HERE / name / "golden.npz") as file:
        return dict(file)


def mels_of(name: str, loaded: LoadedAudio) -> np.ndarray:
    """f32[frames, bins] of the whole sound."""
    sound = sound_of(name, CASES[name][1])
    padded = np.pad(sound, (0, max(0, 160 * loaded.frames - len(sound))))
    return spectrogram(padded, loaded.form.bins)


def first_window(name: str, loaded: LoadedAudio) -> np.ndarray:
    """f32[frames, bins]"""
    sound = sound_of(name, CASES[name][1])[: 160 * loaded.frames]
    made = spectrogram(sound, loaded.form.bins)
    return made if len(made) == loaded.frames else mels_of(name, loaded)


def teacher_rows(name: str, rows: int = 1) -> jax.Array:
    """i32[rows, T]"""
    return jnp.tile(teacher_tokens(name, CASES[name][0]).astype(np.int32), (rows, 1))


async def written(
    loaded: LoadedAudio,
    name: str,
    write: Callable[[SpeechWindow], WrittenWindow],
    *,
    conditioned: bool,
) -> list[list[float]]:
    """Start, end and tokens of the segments of a sound, as a servable writes them down."""

    async def ask(window: SpeechWindow) -> WrittenWindow:
        if not conditioned:
            window = window._replace(previous=())
        answer = write(window._replace(limit=20))
        return answer._replace(logprob=0.0)  # never tried again

    mels, language = mels_of(name, loaded), "de" if "language" in golden_of(name) else ""
    request = TranscriptRequest(
        model_id="/sax/test/ear", sound=b"", language=language, translate=bool(language)
    )
    parts: AsyncGenerator[Any, None] = Transcription(loaded, request, ask).parts(mels, len(mels))
    async with aclosing(parts):
        found = [segment async for part in parts for segment in part.segments]
    return [[each.start, each.end, *each.tokens] for each in found]


def check_segments(
    found: Sequence[Sequence[float]], wanted: np.ndarray, frames: int, timestamps: int
) -> None:
    """frames: of the sound. timestamps: their first token."""
    assert len(found) == len(wanted)
    for (start, end, *tokens), (first, last, *said) in zip(found, wanted.tolist(), strict=True):
        # Ours end with the sound; the reference believes a random model that hears more.
        times = [min(each, frames / 100) for each in (first, last)]
        assert [start, end] == pytest.approx(times, abs=0.005)
        kept = [int(each) for each in said if each >= 0]
        if kept[-2] >= timestamps:
            kept.pop()  # where the next window begins
        assert tokens == kept
