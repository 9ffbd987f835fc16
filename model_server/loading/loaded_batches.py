"""Models that answer in batches, whatever they compute: one protocol, and what a load makes.

The seam between servables and weights: the real loads compile programs, those of the tests are
arithmetic.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from sax.errors import SaxError
from sax.memory_parts import MemoryParts

Item = TypeVar("Item", contravariant=True)
Answer = TypeVar("Answer", covariant=True)

ONLY = ""  # the name of a model's queue, if it has but one


class BatchRunner(Protocol[Item, Answer]):
    """Computes the answers of a batch. Not thread-safe: one thread calls it."""

    @property
    def closed(self) -> bool: ...

    def group(self, item: Item, /) -> Hashable:
        """Return what items have in common that may share a batch."""
        ...

    def run(self, items: Sequence[Item], /) -> Sequence[Answer | SaxError]:
        """Return one answer, or one error, per item; all items are of one group."""
        ...

    def close(self) -> None:
        """Release weights and programs. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class Batching:
    """Batching settings of one queue."""

    most: int  # items per batch
    wait_s: float  # longest wait of an item for others to fill its batch
    queue: int  # items that may wait


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedBatches:
    """A model in memory, compiled for all of its batches; each kind adds what its calls need."""

    runner: BatchRunner[Any, Any]
    batching: Mapping[str, Batching]  # by queue
    memory: int  # bytes of weights, state and workspace, per device
    parts: MemoryParts = MemoryParts()  # of `memory`; a loader of arithmetic has none
    devices: int = 1  # that compute a batch together
    methods: tuple[str, ...]

    @property
    def kind(self) -> str:
        """Name for messages: an embedding model, a model of images, ..."""
        raise NotImplementedError

    def close(self) -> None:
        """Free what the load made, if nobody serves it."""
        self.runner.close()
