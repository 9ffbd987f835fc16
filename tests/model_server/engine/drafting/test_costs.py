"""Costs begin with the times at load, follow what runs, and forget what is not confirmed."""

from __future__ import annotations

import pytest

from model_server.engine.buckets import closed_set
from model_server.engine.drafting.costs import StepCosts
from model_server.engine.timing.step_times import StepTimes

SECONDS = {2: 0.010, 8: 0.012, 16: 0.016}


def costs() -> StepCosts:
    buckets = closed_set(16, (1,))
    times = StepTimes.measured(buckets, [SECONDS.get(b.decodes, 1.0) for b in buckets], 32)
    return StepCosts(times, 16)


def test_a_step_costs_what_its_compiled_size_took_at_load() -> None:
    made = costs()
    assert made.sizes == (2, 8, 16)
    assert made.of(1, late=False) == pytest.approx(SECONDS[2])
    assert made.of(3, late=False) == pytest.approx(SECONDS[8])
    assert made.of(16, late=False) == pytest.approx(SECONDS[16])
    assert made.of(3, late=True) > SECONDS[8], "the device waits for the host"


def test_measured_steps_replace_the_times_at_load() -> None:
    made = costs()
    for _ in range(40):
        made.note(1, 0.020, late=False)
        made.note(5, 0.060, late=True)
    assert made.of(2, late=False) == pytest.approx(0.020, rel=0.02)
    assert made.of(8, late=True) == pytest.approx(0.060, rel=0.02)


def test_sizes_that_never_ran_follow_the_trend() -> None:
    made = costs()
    for _ in range(200):
        made.note(1, 3 * SECONDS[2], late=False)
    assert made.of(16, late=False) == pytest.approx(3 * SECONDS[16], rel=0.02)


def test_what_was_dear_once_is_tried_again() -> None:
    made = costs()
    made.note(5, 7 * SECONDS[8], late=True)
    dear = made.of(5, late=True)
    for _ in range(3000):
        made.note(1, SECONDS[2], late=False)
    assert made.of(5, late=True) < dear / 1.5
    assert made.of(5, late=True) == pytest.approx(1.1 * SECONDS[8], rel=0.05)


def test_an_interval_that_was_something_else_is_left_out() -> None:
    made = costs()
    made.note(1, 5.0, late=False)
    assert made.of(1, late=False) == pytest.approx(SECONDS[2])


def test_without_times_all_steps_cost_the_same() -> None:
    made = StepCosts(None, 16)
    made.note(1, 5.0, late=False)
    assert {made.of(rows, late=late) for rows in (1, 7, 16) for late in (True, False)} == {1.0}
