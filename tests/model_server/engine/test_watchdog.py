"""A step that does not finish is noticed once, and named; anything else is left alone."""

from __future__ import annotations

import threading

import pytest

from model_server.engine.buckets import Bucket
from model_server.engine.engine import Engine, EngineRequest, SequenceUpdate
from model_server.engine.limits import EngineLimits
from model_server.engine.step_times import StepTimes
from model_server.engine.types import Row, Step
from model_server.engine.watchdog import StepHung, Watchdog, limit_s
from sax.errors import ReplicaLost, meaning
from tests.model_server.engine.fake_runner import GREEDY, FakeRunner

LIMITS = EngineLimits(
    slots=16, pages=64, page_size=4, max_context=32, token_budget=64, max_logit_rows=16
)
STEP = Step(17, (Row(3, 0, 5, (), True), Row(4, 1, 0, (1, 2, 3), True)))
TIMES = StepTimes((Bucket(2, 0), Bucket(2, 4)), (0.01, 0.5), 2)


class Hangs:
    """What a watchdog reported."""

    def __init__(self) -> None:
        self.seen: list[StepHung] = []
        self.one = threading.Event()

    def __call__(self, hung: StepHung) -> None:
        self.seen.append(hung)
        self.one.set()


def test_a_step_that_stays_is_named_with_bucket_number_and_rows() -> None:
    hangs = Hangs()
    watchdog = Watchdog(0.05, TIMES, hangs)
    watchdog.expect(STEP)
    assert hangs.one.wait(60)
    watchdog.close()
    assert str(hangs.seen[0]).startswith(
        "step 17 (2 decodes + 4 prompt blocks; sequences 3, 4) did not finish within 0.05 s"
    )
    assert len(hangs.seen) == 1


def test_a_step_behind_images_has_ten_times_as_long() -> None:
    hangs = Hangs()
    watchdog = Watchdog(0.02, TIMES, hangs)
    watchdog.expect(STEP, behind_images=True)
    assert hangs.one.wait(60)
    watchdog.close()
    assert "did not finish within 0.2 s" in str(hangs.seen[0])


def test_steps_that_change_and_rest_are_no_hang() -> None:
    hangs = Hangs()
    watchdog = Watchdog(30.0, None, hangs)
    for number in range(100):
        watchdog.expect(Step(number, STEP.rows))
    watchdog.expect(None)
    watchdog.close()
    assert not hangs.seen


def test_a_slow_host_has_more_time() -> None:
    assert limit_s(30.0, None) == 30.0
    assert limit_s(30.0, TIMES) == 30.0
    assert limit_s(1.0, TIMES) == 10.0


def test_clients_see_a_lost_replica() -> None:
    assert meaning(StepHung("step 1")) == meaning(ReplicaLost("gone"))


@pytest.mark.extended
@pytest.mark.parametrize("permits", [0, 3])
def test_an_engine_whose_runner_hangs_reports_the_step_it_waits_for(permits: int) -> None:
    gate = threading.Semaphore(permits)
    hangs = Hangs()
    ended = threading.Event()

    def deliver(updates: list[SequenceUpdate]) -> None:
        if any(update.finish for update in updates):
            ended.set()

    engine = Engine(FakeRunner(LIMITS, gate=gate), deliver, step_limit_s=1.0, on_hang=hangs)
    engine.submit(EngineRequest(prompt=(1, 2), sampling=GREEDY, max_tokens=9, stop_ids=frozenset()))
    assert hangs.one.wait(60)
    assert f"step {permits + 1} " in hangs.seen[0].text
    gate.release(100)
    assert ended.wait(60)
    engine.close()


@pytest.mark.extended
def test_an_engine_that_waits_for_requests_does_not_hang() -> None:
    hangs = Hangs()
    done = threading.Event()
    engine = Engine(FakeRunner(LIMITS), lambda updates: done.set(), step_limit_s=0.4, on_hang=hangs)
    assert not hangs.one.wait(0.6)
    engine.submit(EngineRequest(prompt=(1, 2), sampling=GREEDY, max_tokens=1, stop_ids=frozenset()))
    assert done.wait(60)
    assert not hangs.one.wait(0.6)
    engine.close()
