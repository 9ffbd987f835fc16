"""Serves images on meshes and in stages of fake devices; a process of its own.

The number of devices is fixed before jax starts, so tests call this as a script:

    python -m tests.model_server.engine.media.on_devices CASE:STAGES:1x1x2 ...

Exit status 0: every answer was the whole model's on one device.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from model_server.engine.limits import EngineLimits
from model_server.loading.stages.island_stages import IslandPipeline
from model_server.loading.stages.pipeline import PipelineRunner, StageThread
from model_server.models.weights.sharding import Layout
from tests.model_server.engine.media.tiny_vision_model import TinyVisionModel, served
from tests.model_server.multihost.queue_link import ring
from tests.model_server.multihost.staged import Hosts, layouts_of


def runners_of(
    model: TinyVisionModel, limits: EngineLimits, stages: int, layouts: Sequence[Layout]
) -> list[Any]:
    """The model whole on one mesh; or in stages of hosts, and on islands."""
    if stages == 1:
        whole = model.runner(limits, leaves=model.leaves(layout=layouts[0]), layout=layouts[0])
        whole.compile(lambda _: None)
        return [whole]

    def parts() -> list[Any]:
        cut = replace(model.recipe, stages=stages).cut()
        return [
            model.runner(limits, part=part, layout=layout, leaves=model.leaves(part, layout))
            for part, layout in zip(cut, layouts, strict=True)
        ]

    hosts = [
        PipelineRunner(part, link, StageThread())
        for part, link in zip(parts(), ring(stages), strict=True)
    ]
    for host in hosts:
        host.compile(lambda _: None)
    *before, last = parts()
    islands = IslandPipeline(before, last.program, last.leaves, last.pages, tuple(last.layouts))
    islands.compile(lambda _: None)
    return [Hosts(hosts), islands]


def main() -> None:
    for run in sys.argv[1:]:
        name, stages, sizes = run.split(":")
        replica, data, inner = map(int, sizes.split("x"))
        model = TinyVisionModel(name)
        limits = model.limits()
        layouts = layouts_of(int(stages), (replica, data, inner))
        for runner in runners_of(model, limits, int(stages), layouts):
            served(model, runner, limits)
            runner.close()


if __name__ == "__main__":
    main()
