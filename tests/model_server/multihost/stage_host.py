"""One host of a pipeline as a process; whoever started it carries what hosts tell each other.

    python -m tests.model_server.multihost.stage_host ORDINAL HOSTS STAGES CASE [COORDINATOR]

With a coordinator's address the hosts of a stage share a mesh through jax.distributed; without one
each stage is one host. A line of JSON on stdout for each thing to tell, one on stdin for each told:

    -> offer of its link, and what it would decide as limits
    <- the next host's offer, and the primary's limits
    -> built
    <- go: every host warms the buckets and plays the same steps
    -> what the steps gave; the primary also plays them on the whole model
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import jax
import msgspec

from model_server.config import ModelServerConfig
from model_server.engine.limits import EngineLimits
from model_server.loading.stages.pipeline import StageThread
from model_server.loading.stages.pipeline_loading import build_stage, plan_stage, stage_layout
from model_server.loading.stages.place import place_of
from model_server.models.weights.sharding import layout_of
from model_server.multihost.link import ZmqLink
from tests.model_server.multihost.played import BUCKETS, numbers_of, play, steps, tokens_of
from tests.model_server.multihost.staged import SEED, Case

LOOPBACK = "127.0.0.1"
CONFIG = ModelServerConfig(slots=6, page_size=8, max_context=32, kv_cache_bytes=2**20)


def tell(**said: Any) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


def told() -> dict[str, Any]:
    return json.loads(sys.stdin.readline())


def summary(runner: Any) -> dict[str, Any]:
    results = play(runner, steps())
    return {"tokens": tokens_of(results), "numbers": numbers_of(results).tolist()}


def main() -> None:
    ordinal, hosts, stages = map(int, sys.argv[1:4])
    case, coordinator = Case(sys.argv[4]), sys.argv[5:]
    if coordinator:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(coordinator[0], hosts, ordinal)
    place, recipe = place_of(hosts, ordinal, stages), replace(case.recipe, stages=stages)
    alone = layout_of((1, 1, jax.device_count())).placed()
    layout = stage_layout(recipe, place) if coordinator else alone
    link = ZmqLink(LOOPBACK, bind=LOOPBACK)
    planned = plan_stage(recipe, case.checkpoint, place.stage, layout, CONFIG, {})
    tell(offer=link.offer, limits=msgspec.to_builtins(planned.limits))
    said = told()
    link.connect(said["offer"])
    limits = msgspec.convert(said["limits"], EngineLimits)
    plan = plan_stage(recipe, case.checkpoint, place.stage, layout, CONFIG, {}, limits)
    # Compiling is slow: two hosts, which every run of the suite has, do with one.
    buckets = BUCKETS if hosts == 2 else None
    runner = build_stage(
        plan, case.checkpoint, SEED, link, StageThread(), lambda _: None, buckets=buckets
    )
    tell(built=runner.weight_bytes)
    told()
    for bucket in runner.buckets:
        runner.warm(bucket)
    staged = summary(runner)
    runner.close()
    tell(staged=staged, whole=None if ordinal else summary(case.whole()))


if __name__ == "__main__":
    main()
