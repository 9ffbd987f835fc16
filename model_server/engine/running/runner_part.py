"""A part of a runner: what it has beside a model's steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import jax
import numpy as np

from model_server.engine.buckets import Bucket
from model_server.engine.compiling import Programs
from model_server.engine.running.ops import Op, Pending
from sax.types import Progress

R = TypeVar("R")  # the runner
# Takes what an op needs of now; returns what does it, on the thread that launches.
Prepare = Callable[[Any], Callable[[], Pending[Any]]]


class RunnerPart(Generic[R]):
    """Adds an operation or arrays to a runner. A hook that is not overridden does nothing."""

    warmups = 0  # indices for `warm`
    seconds: Mapping[type[Op], Mapping[int, float]] = {}  # of its ops, by rows, if `warm` measures

    @property
    def weight_bytes(self) -> int:
        return 0

    @property
    def offer(self) -> str:
        """Address at which other replicas reach what it offers; "": nothing."""
        return ""

    def join(self, runner: R) -> Mapping[type[Op], Prepare]:
        """Become a part of this runner; returns what prepares each op that it does."""
        return {}

    def compile(self, report: Callable[[Progress], None], programs: Programs) -> None:
        """Compile the programs that are not among those of the steps."""

    def warm(self, index: int) -> None:
        """Run programs once."""

    def inputs(self, bucket: Bucket) -> Sequence[jax.Array]:
        """Return what a forward pass takes behind everything else."""
        return ()

    def follow(
        self, bucket: Bucket, vector: np.ndarray, last_tokens: jax.Array, *hidden: jax.Array
    ) -> None:
        """See a step behind its forward pass.

        last_tokens: i32[B + 1], as before its choice. hidden: the states f32[T, W] that a step
        gives if its program has `shows`.
        """

    def copy(self, copies: Sequence[tuple[int, ...]]) -> None:
        """See pages copied, each to another."""

    def sibling(self) -> RunnerPart[R]:
        """Return the same part, with the same weights, for a sibling of the runner."""
        raise AssertionError("this part is one runner's")

    def close(self, *, shared: bool) -> None:
        """Free device memory, but for the weights if a sibling shares them. Idempotent."""
