"""Models whole and in stages, all in one process: each stage on a mesh of devices of its own.

The link is a queue, and one object launches every step on every stage, as the hosts' lockstep does.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from msgspec import structs

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.checkpoint_view import without_prefixes
from model_server.checkpoints.opening import open_checkpoint
from model_server.engine.limits import WindowLimits
from model_server.engine.running.ops import Op, Pending
from model_server.engine.running.runner import ModelRunner
from model_server.engine.step_program import StepProgram
from model_server.engine.types import Step, StepResult
from model_server.kernels import xla
from model_server.kernels.pages import LayerPages, allocate
from model_server.loading.lm_loading import own_tensors
from model_server.loading.random_weights import random_weights
from model_server.loading.stages.island_stages import IslandPipeline
from model_server.loading.stages.pipeline import PipelineRunner, StageThread
from model_server.loading.weights import read_weights
from model_server.models.recipe import Recipe
from model_server.models.registry import make_recipe
from model_server.models.weights.sharding import Layout, layout_of
from model_server.models.weights.weight import Blueprint
from tests.model_server.models.family_cases import F32, checkpoint_of
from tests.model_server.multihost.played import BUCKETS, LIMITS
from tests.model_server.multihost.queue_link import ring
from tests.model_server.tiny import PAGE

LM = "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd2BTest"
TINY = F32 | {
    "ICI_MESH_SHAPE": "null",
    "NUM_LAYERS": "3",
    "MODEL_DIMS": "32",
    "HIDDEN_DIMS": "64",
    "NUM_HEADS": "4",
    "DIMS_PER_HEAD": "8",
    "VOCAB_SIZE": "97",
}
SEED = 3


class Hosts:
    """Every host of a pipeline: what is launched is launched on all of them."""

    limits = LIMITS

    def __init__(self, runners: Sequence[PipelineRunner]) -> None:
        self.runners = runners

    @property
    def closed(self) -> bool:
        return self.runners[0].closed

    @property
    def ops(self) -> Mapping[type[Op], Mapping[int, float]]:
        return self.runners[0].ops

    def launch(self, *steps: Step) -> Pending[Sequence[StepResult]]:
        return [runner.launch(*steps) for runner in self.runners][0]

    def do(self, op: Op) -> Pending[Any]:
        return [runner.do(op) for runner in self.runners][0]

    @property
    def warmups(self) -> int:
        return self.runners[0].warmups

    def warm(self, index: int) -> None:
        together([partial(runner.warm, index) for runner in self.runners])

    def close(self) -> None:
        for runner in self.runners:
            runner.close()


def together(calls: Sequence[Callable[[], object]]) -> None:
    """Each waits for the others."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


class Case:
    """A golden case with its checkpoint, or a class of Saxml with random weights."""

    def __init__(self, name: str) -> None:
        self.closes = ExitStack()
        self.checkpoint: Checkpoint | None = None
        path, config, overrides = LM, None, TINY
        if name != "lm_cloud":
            opened = open_checkpoint(str(checkpoint_of(name)))
            self.checkpoint = self.closes.enter_context(closing(opened))
            path, config, overrides = "auto", self.checkpoint.config, F32
        recipe = make_recipe(path, config, overrides)
        assert isinstance(recipe, Recipe)
        self.recipe = recipe

    def whole(self, sizes: tuple[int, int, int] = (1, 1, 1)) -> ModelRunner:
        layout = layout_of(sizes).placed(jax.devices()[: math.prod(sizes)])
        needed = self.checkpoint and without_prefixes(self.checkpoint, self.recipe.unused)
        runner = runner_of(self.recipe, self.checkpoint, needed, layout)
        runner.compile(lambda _: None)
        return runner

    def staged(self, stages: int, layouts: Sequence[Layout]) -> Hosts:
        parts = replace(self.recipe, stages=stages).cut()
        runners = [
            PipelineRunner(self._stage(part, layout), link, StageThread())
            for part, layout, link in zip(parts, layouts, ring(stages), strict=True)
        ]
        for runner in runners:
            runner.compile(lambda _: None)
        return Hosts(runners)

    def lanes(self, stages: int, layouts: Sequence[Layout]) -> tuple[IslandPipeline, ...]:
        """Two lanes of a pipeline whose stages one process drives."""
        parts = replace(self.recipe, stages=stages).cut()
        *before, last = map(self._stage, parts, layouts)
        first = IslandPipeline(before, last.program, last.leaves, last.pages, BUCKETS)
        first.compile(lambda _: None)
        return first, first.sibling([pages_of(*each) for each in zip(parts, layouts, strict=True)])

    def _stage(self, part: Recipe, layout: Layout) -> ModelRunner:
        module = part.blueprint(layout, self.checkpoint)
        own = self.checkpoint and own_tensors(part, module, layout, self.checkpoint)
        return runner_of(part, self.checkpoint, own, layout)


def runner_of(
    recipe: Recipe, whole: Checkpoint | None, own: Checkpoint | None, layout: Layout
) -> ModelRunner:
    """The runner of a model or stage; `own` has its tensors only."""
    module, embed = recipe.blueprint(layout, whole), recipe.row
    leaves, pages = leaves_of(module, own, layout), pages_of(recipe, layout)
    program = StepProgram(
        module,
        leaves,
        pages,
        structs.replace(LIMITS, windows=WindowLimits(recurrent=recipe.recurrent)),
        xla.KERNEL,
        stage=recipe.stage,
        embed=embed,
        vocab=recipe.vocab,
    )
    return ModelRunner(program, leaves, pages, BUCKETS)


def leaves_of(module: Blueprint, checkpoint: Checkpoint | None, layout: Layout) -> list[jax.Array]:
    if checkpoint is None:
        return random_weights(module.declarations, SEED, lambda _: None, layout)
    return read_weights(module.declarations, checkpoint, lambda _: None, layout)


def pages_of(recipe: Recipe, layout: Layout) -> tuple[LayerPages, ...]:
    cache = recipe.cache(layout.shards("heads"))
    return allocate(cache, LIMITS.pages, PAGE, jnp.dtype("float32"), layout.pages)


def layouts_of(stages: int, sizes: tuple[int, int, int]) -> list[Layout]:
    """On devices of their own."""
    size, devices = math.prod(sizes), jax.devices()
    return [layout_of(sizes).placed(devices[index * size :]) for index in range(stages)]
