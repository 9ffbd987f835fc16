"""Host time per step: microseconds of schedule + commit, and of a whole engine turn.

Every slot decodes greedily on a runner that computes nothing (the last token is the position),
so that what is left is the scheduler, or the engine around it.
"""

from __future__ import annotations

import statistics
import threading
import time
from typing import Any

from model_server.engine.engine import Engine, EngineRequest, SequenceUpdate
from model_server.engine.limits import EngineLimits
from model_server.engine.registry import new_sequence
from model_server.engine.scheduler import Scheduler
from model_server.engine.types import RowResult, Sampling, Step, StepResult
from tests.tools.bench.table import Table

STEPS = 1500


class InstantRunner:
    """Answers every row at once; measures the time spent in itself."""

    def __init__(self, limits: EngineLimits) -> None:
        self.limits = limits
        self.ops: dict[Any, Any] = {}
        self.closed = False
        self.warmups = 0
        self.spent_s = 0.0

    def launch(self, *steps: Step) -> Answered:
        (step,) = steps
        began_s = time.perf_counter()
        pending = Answered(StepResult(step.number, tuple(RowResult(r.start) for r in step.rows)))
        self.spent_s += time.perf_counter() - began_s
        return pending

    def do(self, op: object) -> Any:
        raise AssertionError("these are steps alone")

    def warm(self, index: int) -> None:
        """There is nothing to warm."""

    def close(self) -> None:
        self.closed = True


class Answered:
    """A step that is done already."""

    def __init__(self, result: StepResult) -> None:
        self._result = result

    def result(self) -> list[StepResult]:
        return [self._result]


def limits_for(slots: int) -> EngineLimits:
    context = STEPS + 64
    return EngineLimits(
        slots=slots,
        pages=slots * -(-context // 16),
        page_size=16,
        max_context=context,
        token_budget=slots + 256,
        max_logit_rows=slots,
        prefill_block=16,
        prefix_cache="tenant",
    )


def engine_request() -> EngineRequest:
    return EngineRequest(
        prompt=tuple(range(32)),
        sampling=Sampling(0.0, 0, 1.0, seed=0),
        max_tokens=STEPS,
        stop_ids=frozenset({-1, -2}),
    )


def scheduler_us(slots: int) -> float:
    """Median microseconds of schedule plus commit, all slots decoding."""
    limits = limits_for(slots)
    scheduler, runner = Scheduler(limits), InstantRunner(limits)
    for id in range(1, slots + 1):
        scheduler.add(new_sequence(id, engine_request(), limits))
    times: list[float] = []
    step = scheduler.schedule()
    while step:
        pending = runner.launch(step)
        began_s = time.perf_counter()
        following = scheduler.schedule()
        middle_s = time.perf_counter()
        (result,) = pending.result()
        again_s = time.perf_counter()
        scheduler.commit(step, result)
        ended_s = time.perf_counter()
        if all(row.is_decode for row in step.rows):
            times.append(middle_s - began_s + ended_s - again_s)
        step = following
    return statistics.median(times) * 1e6


def engine_us(slots: int) -> float:
    """Mean microseconds of one turn of the engine's thread, the runner's own time excluded."""
    runner = InstantRunner(limits_for(slots))
    left, done = slots, threading.Event()

    def deliver(updates: list[SequenceUpdate]) -> None:
        nonlocal left
        left -= sum(update.finish is not None for update in updates)
        if not left:
            done.set()

    engine = Engine(runner, deliver)
    began_s = time.perf_counter()
    for _ in range(slots):
        engine.submit(engine_request())
    done.wait()
    spent_s = time.perf_counter() - began_s - runner.spent_s
    steps = engine.stats().steps
    engine.close()
    return spent_s / steps * 1e6


def run() -> Table:
    table = Table(
        "The scheduler's time per step",
        "Every slot decodes on a runner that computes nothing; prefix cache on. Median of "
        f"{STEPS} steps. Bar: 300 us of schedule + commit at 64 slots.",
        ("decoding slots", "schedule + commit, us per step", "engine turn, us per step"),
    )
    for slots in (1, 8, 32, 64):
        table.add(slots, f"{scheduler_us(slots):.0f}", f"{engine_us(slots):.0f}")
    return table
