"""Plans and loads a model in stages on islands that this process drives.

Every stage is planned for its own island's devices; the one with the least memory decides how many
pages all have, and the pipeline's lanes share slots and pages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import jax

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.config import ModelServerConfig
from model_server.engine.buckets import Bucket
from model_server.engine.compiling import Programs
from model_server.engine.islands.island_pipeline import IslandPipeline
from model_server.engine.limits import EngineLimits, lane_limits
from model_server.engine.running.runner import ModelRunner
from model_server.engine.step_program import StepProgram
from model_server.islands.devices import Copy, islands
from model_server.kernels.pages import LayerPages
from model_server.loading.deployment import Deployment
from model_server.loading.lm_loading import LanguageLoad, read_leaves
from model_server.loading.stages.pipeline_loading import (
    layout_over,
    plan_alone,
)
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
