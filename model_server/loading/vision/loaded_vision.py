"""A loaded model that classifies and embeds images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from model_server.loading.loaded_batches import BatchRunner, LoadedBatches
from model_server.sharing.images.forms import SquareForm

WAIT_S = 0.002  # well below one step


class SeenImage(NamedTuple):
    """Outputs of a model for one image."""

    vector: np.ndarray  # f32[D]
    scores: np.ndarray  # f32[labels], log-probabilities


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedVision(LoadedBatches):
    """Computes images u8[S, S, 3]."""

    runner: BatchRunner[np.ndarray, SeenImage]
    form: SquareForm  # of images that the runner takes
    labels: tuple[str, ...]
    top_k: int  # labels of an answer
    methods: tuple[str, ...] = ("vm.classify", "vm.embed")

    @property
    def kind(self) -> str:
        return "a model of images"
