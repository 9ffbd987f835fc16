"""A loaded model that speaks, piece by piece of a text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from model_server.loading.loaded_batches import BatchRunner, LoadedBatches
from model_server.models.audio.synthesizer_recipe import SynthesizerBuckets
from model_server.models.audio.vits_tokenizer import VitsTokenizer


class SpeechPiece(NamedTuple):
    """A piece of a text to speak, and how."""

    tokens: tuple[int, ...]  # at most the largest bucket
    speaker: int
    speed: float  # 1: as the checkpoint says
    seed: int  # u32
    index: int  # of the piece in its text, which draws numbers of its own


class SpokenPiece(NamedTuple):
    samples: np.ndarray  # f32[frames * samples of one], from -1 to 1
    frames: int


class TooLong(NamedTuple):
    """The answer for a piece that would last longer than the largest number of frames."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSynthesizer(LoadedBatches):
    """Speaks pieces. Each is computed alone, so its sound depends on nothing else in a batch."""

    runner: BatchRunner[SpeechPiece, SpokenPiece | TooLong]
    tokenizer: VitsTokenizer
    voices: Mapping[str, int]  # names of speakers; the first is the default
    buckets: SynthesizerBuckets
    rate: int  # samples a second
    frame: int  # samples
    methods: tuple[str, ...] = ("am.speak",)

    @property
    def kind(self) -> str:
        return "a model that speaks"
