"""Beam searches on any runner, driven as the engine does."""

from __future__ import annotations

from collections.abc import Sequence as Many

from model_server.engine.parts.beams import sampling_of
from model_server.engine.registry import new_sequence
from model_server.engine.request import EngineRequest
from model_server.engine.running.ops import Runner
from model_server.engine.scheduler import Scheduler
from model_server.engine.types import BeamSettings, Hypothesis


def search_for(
    prompt: tuple[int, ...], beams: BeamSettings, ends: frozenset[int], max_tokens: int
) -> EngineRequest:
    return EngineRequest(
        prompt=prompt,
        sampling=sampling_of(beams, ends),
        max_tokens=max_tokens,
        stop_ids=ends,
        beams=beams,
    )


def answers_of(runner: Runner, asked: Many[EngineRequest]) -> list[tuple[Hypothesis, ...]]:
    """All requests at once, each step launched before the one before it is read."""
    scheduler, found = Scheduler(runner.limits), {}
    ids = [100 * (place + 1) for place in range(len(asked))]
    for id, each in zip(ids, asked, strict=True):
        scheduler.add(new_sequence(id, each, runner.limits))
    in_flight = None
    while scheduler.load().live or in_flight:
        step = scheduler.schedule()
        launched = (step, runner.launch(step)) if step else None
        if in_flight:
            for update in scheduler.commit(in_flight[0], in_flight[1].result()[0]):
                found[update.sequence] = update.hypotheses
        in_flight = launched
    assert (scheduler.load().slots_used, scheduler.load().pages_used) == (0, 0)
    return [found[id] for id in ids]
