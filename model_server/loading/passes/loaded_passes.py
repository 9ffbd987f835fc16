"""Loaded models that read whole texts: they embed, classify or rank them or their tokens, or
differentiate a loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from model_server.loading.loaded_batches import BatchRunner, LoadedBatches
from model_server.models.tasks import Sizes
from model_server.text.late_tokenizer import LateTokenizer
from model_server.text.sentence_tokenizer import SentenceTokenizer
from sax.passes import Gradients

WAIT_S = 0.002  # well below one step

Ids = Sequence[int]
Vector = list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedEmbedder(LoadedBatches):
    """Embeds or classifies."""

    runner: BatchRunner[Ids, Vector]
    tokenizer: SentenceTokenizer
    vocab: int  # rows of the embedding
    max_context: int  # tokens of one input
    dimensions: int  # of a vector
    sizes: Sizes = ()  # smaller ones that its vectors may be cut to
    normalised: bool = True  # vectors have length 1
    labels: tuple[str, ...] = ()  # the vector of a classifier has a score for each; empty: embeds
    methods: tuple[str, ...] = ("lm.embed", "lm.rerank")

    @property
    def kind(self) -> str:
        if not self.labels:
            return "an embedding model"
        return "a classification model" if "lm.classify" in self.methods else "a reranker"


class TokenText(NamedTuple):
    """A text of which every token gets a vector."""

    ids: Sequence[int]
    seen: int  # the first so many are seen by all; the others see them, and nobody sees these


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTokens(LoadedBatches):
    """Gives each token a vector to compare, or a score per label."""

    runner: BatchRunner[TokenText, np.ndarray]  # f32[T, dimensions]
    tokenizer: SentenceTokenizer
    vocab: int  # rows of the embedding
    max_context: int  # tokens of one input
    dimensions: int  # of a token's vector
    late: LateTokenizer | None = None  # reads queries and documents; None: it has labels
    labels: tuple[str, ...] = ()
    methods: tuple[str, ...] = ("lm.embed", "lm.rerank")

    @property
    def kind(self) -> str:
        return "a classifier of tokens" if self.labels else "a late-interaction model"


class GradientInput(NamedTuple):
    """A text whose loss is differentiated."""

    ids: Sequence[int]  # of prefix and suffix
    prefix: int  # how many of them are the prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedGradients(LoadedBatches):
    """Gradients of a language model's loss."""

    runner: BatchRunner[GradientInput, Gradients]
    max_context: int  # tokens of prefix and suffix
    memory: int = 0  # counted by the language model
    methods: tuple[str, ...] = ("lm.gradient",)

    @property
    def kind(self) -> str:
        return "the gradients of a language model"
