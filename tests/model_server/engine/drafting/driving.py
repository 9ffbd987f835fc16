"""Drives a real runner as the engine does, with draft tokens or without."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from model_server.engine.drafting.drafting import Drafting
from model_server.engine.registry import new_sequence
from model_server.engine.request import EngineRequest, SequenceUpdate
from model_server.engine.running.ops import Choose, Runner
from model_server.engine.scheduler import Scheduler
from model_server.engine.types import RowResult


def answers(
    runner: Runner, requests: Seq[EngineRequest], drafting: Drafting | None = None
) -> list[list[RowResult]]:
    """The results of each request, token by token; all are there from the start."""
    return [[each.result for each in of] for of in updates(runner, requests, drafting)]


def updates(
    runner: Runner, requests: Seq[EngineRequest], drafting: Drafting | None = None
) -> list[list[SequenceUpdate]]:
    """As `answers`, with all that is told of each token."""
    scheduler = Scheduler(runner.limits, parts=[drafting] if drafting else [])
    made: dict[int, list[SequenceUpdate]] = {}
    for id, request in enumerate(requests, 1):
        made[id] = []
        scheduler.add(new_sequence(id, request, runner.limits))
    in_flight = None
    while scheduler.load().live or in_flight:
        step = scheduler.schedule()
        launched = (step, runner.launch(step)) if step else None
        assert launched or in_flight, "nothing to do, yet live"
        if in_flight:
            for update in scheduler.commit(in_flight[0], in_flight[1].result()[0]):
                made[update.sequence].append(update)
        if step and step.guided:
            masks, failed = scheduler.masks(step)
            assert not failed
            runner.do(Choose(tuple(masks)))
        in_flight = launched
    return list(made.values())


def tokens_of(results: Seq[RowResult]) -> list[int]:
    return [result.token for result in results if result.token is not None]
