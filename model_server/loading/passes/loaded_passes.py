"""Loaded models that read whole texts: they embed, classify or rank them or their tokens, or
differentiate a loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from model_server.loading.images.image_reader import ImageReader
from model_server.loading.images.prepared import PreparedImage
from model_server.loading.loaded_batches import BatchRunner, LoadedBatches
from model_server.models.tasks import Sizes
from model_server.text.chat_template import ChatTemplate
from model_server.text.late_tokenizer import LateTokenizer
from model_server.text.sentence_tokenizer import SentenceTokenizer
from sax.passes import Gradients

WAIT_S = 0.002  # well below one step

Ids = Sequence[int]
Vector = list[float]


class MixedInput(NamedTuple):
    """An input of a model that sees: a text, an image, or a text with images in it."""

    ids: Sequence[int] = ()
    images: tuple[PreparedImage, ...] = ()
    places: Sequence[Sequence[int]] = ()  # of each image's tokens among the ids
    positions: np.ndarray | None = None  # i32[T, 3]; None: as of a text

    @property
    def tokens(self) -> int:
        """Tokens, or the pieces of an image that is an input by itself."""
        return len(self.ids) or sum(image.count for image in self.images)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageReading:
    """The reader of a model's inputs with images: preprocessing, template and control tokens."""

    images: ImageReader
    paired: bool = False  # an input is a text or an image, not both
    template: ChatTemplate | None = None  # that writes an input as a chat; None: there is none
    instruction: str = ""  # of a message `system` before an input that has none; "": none
    marked: str = ""  # what stands for an image in texts that no template writes
    triples: bool = False  # positions of images are three numbers
    # Of late interaction: what stands before and after a query, a document or one of images, by
    # these names; empty: of another kind
    frames: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """From cosines of texts and images to scores: scale * cosine + bias, then a sigmoid of each, or
    a softmax over all that an input is matched with.
    """

    scale: float
    bias: float
    independent: bool  # a sigmoid of each


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedEmbedder(LoadedBatches):
    """Embeds or classifies."""

    runner: BatchRunner[Any, Vector]  # of Ids, or of MixedInput if it sees
    tokenizer: SentenceTokenizer
    vocab: int  # rows of the embedding
    max_context: int  # tokens of one input
    dimensions: int  # of a vector
    sizes: Sizes = ()  # smaller ones that its vectors may be cut to
    normalised: bool = True  # vectors have length 1
    labels: tuple[str, ...] = ()  # the vector of a classifier has a score for each; empty: embeds
    methods: tuple[str, ...] = ("lm.embed", "lm.rerank")
    image_reading: ImageReading | None = None  # None: it reads texts alone
    matching: Matching | None = None  # of texts with images; None: it was not trained for that

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

    runner: BatchRunner[Any, np.ndarray]  # of TokenText, or MixedInput; f32[T, dimensions]
    tokenizer: SentenceTokenizer
    vocab: int  # rows of the embedding
    max_context: int  # tokens of one input
    dimensions: int  # of a token's vector
    late: LateTokenizer | None = None  # reads queries and documents; None: it has labels
    labels: tuple[str, ...] = ()
    methods: tuple[str, ...] = ("lm.embed", "lm.rerank")
    image_reading: ImageReading | None = None  # None: it reads texts alone

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
