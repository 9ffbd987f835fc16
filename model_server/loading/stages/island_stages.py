"""Plans and loads a model in stages on islands that this process drives.

Every stage is planned for its own island's devices; the one with the least memory decides how many
pages all have, and the pipeline's lanes share slots and pages.

The host only launches. A stage's hidden states go to the next island, and the last tokens back to
the first, by copies between devices that nobody waits for: while one island computes a step, the
others compute those before and after it. One batch of decodes still passes through all stages
before its next step can begin, so the stages of one lane's step run beside those of another's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import jax
import numpy as np

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.config import ModelServerConfig
from model_server.engine.buckets import Bucket
from model_server.engine.compiling import COMPILED_HERE, Programs
from model_server.engine.limits import EngineLimits, lane_limits
from model_server.engine.running.runner import ModelRunner
from model_server.engine.step_program import StepProgram
from model_server.islands import Copy, islands
from model_server.kernels.pages import LayerPages
from model_server.loading.deployment import Deployment
from model_server.loading.lm_loading import LanguageLoad, read_leaves
from model_server.loading.stages.pipeline_loading import layout_over, plan_alone
from model_server.models.recipe import Recipe
from sax.errors import MemoryPlanError
from sax.types import ModelSpec, Progress

Report = Callable[[Progress], None]
RunnerParts = tuple[StepProgram, Sequence[jax.Array], Sequence[LayerPages], Sequence[Bucket]]


class IslandStagesLoad(LanguageLoad):
    """A planned pipeline, ready to build."""

    def __init__(
        self,
        spec: ModelSpec,
        recipe: Recipe,
        checkpoint: Checkpoint | None,
        config: ModelServerConfig,
        holders: Mapping[str, int],
        copy: Copy,
        limits: EngineLimits | None = None,
    ) -> None:
        """copy: the island of each stage. limits: of another copy of the model; None: planned here.

        Raises MemoryPlanError, InvalidRequest.
        """
        super().__init__(spec, checkpoint, config)
        devices = islands()
        plans = [
            plan_alone(part, checkpoint, layout_over(part, devices[island]), config, holders)
            for part, island in zip(recipe.cut(), copy, strict=True)
        ]
        if limits is None:
            least = min(plan.limits.pages for plan in plans)
            limits = plans[-1].with_pages(least).limits
        plans = [plan.following(limits) for plan in plans]
        self._lanes = min(len(plans), limits.slots)
        self._stages = [_of_lane(plan, self._lanes) for plan in plans]
        self.deployment = plans[-1]

    @property
    def measured(self) -> Deployment:
        """The deployment whose buckets the runner has."""
        return self._stages[-1]

    def build(self, programs: Programs, report: Report) -> IslandPipeline:
        """Read weights, allocate pages and compile; nothing has run yet. Returns the first lane."""
        *before, last = [self._parts(stage, report) for stage in self._stages]
        first = IslandPipeline([ModelRunner(*parts) for parts in before], *last)
        try:
            first.compile(report, programs)
            self.others = [first.sibling(self._pages()) for _ in range(1, self._lanes)]
        except BaseException:
            first.close()
            raise
        return first

    def _parts(self, stage: Deployment, report: Report) -> RunnerParts:
        leaves = read_leaves(stage, self._checkpoint, self._seed, report, self._spec)
        return stage.program, leaves, stage.allocate_pages(), self.measured.buckets

    def _pages(self) -> list[Sequence[LayerPages]]:
        return [stage.allocate_pages() for stage in self._stages]


def _of_lane(plan: Deployment, lanes: int) -> Deployment:
    """Return the deployment of one lane, with its part of slots and pages.

    Raises MemoryPlanError if that is too little for one sequence.
    """
    limits = lane_limits(plan.limits, lanes)
    if limits.pages < limits.pages_per_sequence:
        raise MemoryPlanError(
            f"{plan.stage}: {plan.limits.pages} KV pages are divided among {lanes} lanes, and each "
            f"needs {limits.pages_per_sequence} for one whole sequence: raise --kv_cache_bytes or "
            "lower --max_context"
        )
    return replace(plan, limits=limits)


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
