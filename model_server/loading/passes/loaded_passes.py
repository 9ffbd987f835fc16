"""Loaded models that read whole texts: they embed, classify, rank, or differentiate a loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from model_server.loading.loaded_batches import BatchRunner, LoadedBatches
from model_server.models.tasks import Sizes
from sax.passes import Gradients

WAIT_S = 0.002  # well below one step

Ids = Sequence[int]
Vector = list[float]


class TextEncoder(Protocol):
    """Encodes texts for an embedder or a classifier, including start and end tokens."""

    @property
    def waits(self) -> bool:
        """True if texts are encoded in another process, so that encoding blocks."""
        ...

    @property
    def longest_token(self) -> int:
        """Bytes of the vocabulary's longest token, or more."""
        ...

    def encode(self, text: str, prompt_name: str = "") -> list[int]:
        """Return the ids of a text after a prompt of the model; "": its own choice.

        Raises UnsupportedParameter for a prompt that the model does not have.
        """
        ...

    def encode_pair(self, first: str, second: str) -> list[int]:
        """Return the ids of two texts that are read together."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedEmbedder(LoadedBatches):
    """Embeds or classifies."""

    runner: BatchRunner[Ids, Vector]
    tokenizer: TextEncoder
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
