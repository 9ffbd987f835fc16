"""A model in stages, each on an island of its own, driven by one process.

The host only launches. A stage's hidden states go to the next island, and the last tokens back to
the first, by copies between devices that nobody waits for: while one island computes a step, the
others compute those before and after it. One batch of decodes still passes through all stages
before its next step can begin, so a pipeline has lanes: each has slots and pages of its own and
shares the weights, and the stages of one lane's step run beside those of another's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import numpy as np

from model_server.engine.buckets import Bucket
from model_server.engine.compiling import COMPILED_HERE, Programs
from model_server.engine.running.runner import ModelRunner
from model_server.engine.step_program import StepProgram
from model_server.kernels.pages import LayerPages
from sax.types import Progress


class IslandPipeline(ModelRunner):
    """The runner of the last stage, which has the steps pass through the stages before it."""

    def __init__(
        self,
        before: Sequence[ModelRunner],
        program: StepProgram,
        leaves: Sequence[jax.Array],
        pages: Sequence[LayerPages],
        buckets: Sequence[Bucket],
    ) -> None:
        """before: of the other stages, in order; this one owns them. The rest is the last one's."""
        super().__init__(program, leaves, pages, buckets)
        self._before = tuple(before)
        for stage in self._before:  # ops of parts that lie with the first layers
            self._prepares = stage._prepares | self._prepares
            self.ops = stage.ops | self.ops

    @property
    def weight_bytes(self) -> int:
        return super().weight_bytes + sum(stage.weight_bytes for stage in self._before)

    def compile(
        self, report: Callable[[Progress], None], programs: Programs = COMPILED_HERE
    ) -> None:
        for stage in self._before:
            stage.compile(report, programs)
        super().compile(report, programs)

    def sibling(self, pages: Sequence[Any]) -> Self:
        """Return another lane; pages: those of each stage."""
        before = [stage.sibling(its) for stage, its in zip(self._before, pages[:-1], strict=True)]
        made = type(self)(before, self.program, self._leaves, pages[-1], self._buckets)
        self._share_with(made)
        return made

    @property
    def part_warmups(self) -> int:
        return sum(stage.part_warmups for stage in self._before)

    def warm_part(self, index: int) -> None:
        for stage in self._before:
            if index < stage.part_warmups:
                stage.warm_part(index)
                return
            index -= stage.part_warmups
        raise IndexError(f"there are {self.part_warmups} to warm")

    def copy(self, copies: Sequence[tuple[int, ...]]) -> None:
        for stage in self._before:
            stage.copy(copies)
        super().copy(copies)

    def forward(self, bucket: Bucket, vector: np.ndarray, given: Any = None) -> Any:
        """Launch the step on every stage; returns `Computed`, on the last one's island."""
        passed: Any = self.last_tokens
        for stage in self._before:
            passed = stage.forward(bucket, vector, _at(passed, stage))
        return super().forward(bucket, vector, _at(passed, self))

    def close(self) -> None:
        for stage in self._before:
            stage.close()
        super().close()


def _at(array: jax.Array, stage: ModelRunner) -> jax.Array:
    return jax.device_put(array, stage.program.everywhere)
