"""Answers about images and sounds by planned models on meshes and in stages; a process of its own.

    python -m tests.model_server.loading.media.models_on_devices RESULTS.json CASE:STAGES:1x1x2 ...

RESULTS.json holds, under each of these names, what `Answered` has of two requests; or why there is
nothing. Prompts are computed in chunks of four tokens, which are one image of Gemma 3 and less than
one of others, and what comes after them token by token.
"""

from __future__ import annotations

import json
import math
import sys
import traceback
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
from msgspec import structs

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.checkpoint_view import without_prefixes
from model_server.checkpoints.opening import open_checkpoint
from model_server.config import ModelServerConfig
from model_server.engine.buckets import Bucket
from model_server.engine.running.ops import Runner
from model_server.engine.running.runner import ModelRunner
from model_server.loading.deployment import Deployment, deploy
from model_server.loading.lm_loading import read_parts
from model_server.loading.memory_plan import FreeMemory
from model_server.loading.stages.pipeline import StageThread
from model_server.loading.stages.pipeline_loading import build_stage
from model_server.loading.weights import read_weights
from model_server.models.recipe import Recipe
from model_server.models.registry import make_recipe
from model_server.models.weights.sharding import Layout, layout_of
from tests.model_server.loading.media.image_requests import answered, request_of
from tests.model_server.models.media.media_cases import F32, media_checkpoint_of
from tests.model_server.multihost.queue_link import ring
from tests.model_server.multihost.staged import Hosts, layouts_of

CONFIG = ModelServerConfig(slots=2, page_size=8)
OVERRIDES = F32 | {"MAX_CONTEXT": "128", "MEDIA_ROWS": "136", "SPECULATION": '"off"'}
BLOCK = 4
BUCKETS = (Bucket(2, 1),)


def answers(name: str, stages: int, sizes: tuple[int, int, int]) -> dict[str, Any]:
    with closing(open_checkpoint(str(media_checkpoint_of(name)))) as checkpoint:
        recipe = make_recipe("auto", checkpoint.config, OVERRIDES)
        assert isinstance(recipe, Recipe)
        runner = _runner(recipe, checkpoint, stages, sizes)
    assert recipe.media
    asked = request_of(name, recipe.media)
    first, second = answered(runner, asked, asked)
    return {"first": first._asdict(), "second": second._asdict()}


def _runner(
    recipe: Recipe, checkpoint: Checkpoint, stages: int, sizes: tuple[int, int, int]
) -> Runner:
    if stages > 1:
        parts = replace(recipe, stages=stages).cut()
        return _staged(parts, checkpoint, layouts_of(stages, sizes))
    layout = layout_of(sizes).placed(jax.devices()[: math.prod(sizes)])
    plan = _planned(recipe, checkpoint, layout)
    needed = without_prefixes(checkpoint, recipe.unused)
    leaves = read_weights(plan.blueprint.declarations, needed, lambda _: None, layout)
    parts = read_parts(plan, checkpoint, 0, lambda _: None, lambda *_: [], leaves, None, BUCKETS)
    runner = ModelRunner(plan.program, leaves, plan.allocate_pages(), BUCKETS, parts)
    runner.compile(lambda _: None)
    return runner


def _staged(parts: Sequence[Recipe], checkpoint: Checkpoint, layouts: Sequence[Layout]) -> Hosts:
    plans = [
        _planned(part, checkpoint, layout) for part, layout in zip(parts, layouts, strict=True)
    ]
    runners = [
        build_stage(plan, checkpoint, 0, link, StageThread(), lambda _: None, buckets=BUCKETS)
        for plan, link in zip(plans, ring(len(plans)), strict=True)
    ]
    hosts = Hosts(runners)
    hosts.limits = plans[0].limits
    return hosts


def _planned(recipe: Recipe, checkpoint: Checkpoint, layout: Layout) -> Deployment:
    plan = deploy(recipe, checkpoint, layout, CONFIG, FreeMemory(4 << 30, 0))
    limits = structs.replace(
        plan.limits,
        pages=40,
        prefill_block=BLOCK,
        max_prefill_blocks=1,
        token_budget=plan.limits.decodes + BLOCK,
    )
    return replace(plan, limits=limits)


def main() -> None:
    path, *runs = sys.argv[1:]
    found: dict[str, Any] = {}
    for run in runs:
        name, stages, sizes = run.split(":")
        replica, data, inner = map(int, sizes.split("x"))
        try:
            found[run] = answers(name, int(stages), (replica, data, inner))
        except Exception:
            found[run] = {"error": traceback.format_exc()}
    Path(path).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
