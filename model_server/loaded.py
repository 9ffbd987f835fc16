"""What loading a model yields: everything a servable needs, whoever made it.

The seam between the servables and the weights: the real loader reads a checkpoint and compiles,
the tests' loader is arithmetic. One class per kind of model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from model_server.chat_template import ChatTemplate
from model_server.disaggregation.apart import Apart
from model_server.engine.types import Runner
from model_server.tokenizer import Tokenizer
from sax.errors import SaxError
from sax.types import ModelSpec, Progress, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A language model in memory, compiled and ready to run steps."""

    runner: Runner
    tokenizer: Tokenizer
    vocab: int | None = None  # rows of the embedding; None: one for each id of the tokenizer
    chat_template: ChatTemplate | None
    chat_queries: bool = False  # a Saxml query is a user's turn in the chat template
    defaults: SamplingParams  # for what a Saxml request leaves out
    samples: int  # answers per Saxml Generate call
    memory: int  # bytes of weights, KV pages and workspace
    methods: tuple[str, ...]  # lm.generate, lm.generate_stream, lm.score
    apart: Apart | None = None  # where prompts and answers may be computed on different servers


class EmbedRunner(Protocol):
    """Computes the vectors of a batch. Not thread-safe: one thread calls it."""

    @property
    def closed(self) -> bool:
        """Whether its memory is free."""
        ...

    @property
    def batch(self) -> int:
        """Inputs of one call at most."""
        ...

    def length(self, count: int) -> int:
        """The compiled length that takes so many tokens; inputs of one length share a batch."""
        ...

    def embed(self, inputs: Sequence[Sequence[int]]) -> list[list[float]]:
        """One vector per input, all of one `length`."""
        ...

    def close(self) -> None: ...


class TextEncoder(Protocol):
    """Turns a text into the ids that an embedder reads, start and end tokens included."""

    def encode(self, text: str) -> list[int]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedEmbedder:
    """An embedding model in memory, compiled for all of its buckets."""

    runner: EmbedRunner
    tokenizer: TextEncoder
    vocab: int  # rows of the embedding
    max_context: int  # tokens of one input
    dimensions: int  # of a vector
    queue: int  # inputs that may wait
    memory: int  # bytes of weights and workspace
    methods: tuple[str, ...] = ("lm.embed",)


class CustomRunner(Protocol):
    """Computes batches of a custom model's requests. Not thread-safe: one thread calls it."""

    @property
    def closed(self) -> bool:
        """Whether its memory is free."""
        ...

    def answer(self, method: str, requests: Sequence[bytes]) -> Sequence[bytes | SaxError]:
        """An answer or an error for each request."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Batching:
    """How the requests of one custom method are brought together."""

    most: int  # of one batch
    wait_s: float
    queue: int  # that may wait


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedCustom:
    """A custom model in memory, compiled for all of its buckets."""

    runner: CustomRunner
    batching: Mapping[str, Batching]  # by method
    memory: int  # bytes of weights, states and workspace


AnyLoaded = Loaded | LoadedEmbedder | LoadedCustom

# Blocking. Raises LoadFailed and its kin, InvalidRequest, ModelPathNotFound.
Loader = Callable[[ModelSpec, Callable[[Progress], None]], AnyLoaded]
