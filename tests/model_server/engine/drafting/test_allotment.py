"""Draft tokens go where they add most, and only as far as the larger step is worth it to all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_server.engine.buckets import closed_set
from model_server.engine.drafting.drafts import StepCosts, allot
from model_server.engine.step_times import StepTimes

SURE = [0.95**place for place in range(1, 9)]
POOR = [0.1**place for place in range(1, 9)]
SECONDS = {2: 0.010, 8: 0.012, 16: 0.016}


def costs_of(seconds: dict[int, float]) -> StepCosts:
    buckets = closed_set(max(seconds), (1,))
    times = StepTimes.measured(buckets, [seconds.get(b.decodes, 9.0) for b in buckets], 1)
    return StepCosts(times, max(seconds))


CHEAP = costs_of({2: 1.0, 8: 1.1, 16: 1.2})
DEAR = costs_of({2: 1.0, 8: 4.0, 16: 8.0})


def test_a_sure_sequence_fills_a_cheap_step() -> None:
    assert allot({1: SURE}, 1, 16, CHEAP, ahead=True) == {1: 8}


def test_nothing_is_drafted_where_the_larger_step_costs_what_it_gives() -> None:
    assert allot({1: SURE, 2: POOR}, 2, 16, DEAR, ahead=True) == {}


def test_padding_is_used_only_if_no_pipeline_is_given_up_for_it() -> None:
    assert allot({1: POOR}, 1, 16, DEAR, ahead=False) == {1: 1}
    assert allot({1: POOR}, 1, 16, DEAR, ahead=True) == {}


def test_the_surer_sequence_gets_the_rows() -> None:
    made = allot({1: POOR, 2: SURE}, 2, 8, CHEAP, ahead=True)
    assert made[2] >= 5
    assert sum(made.values()) <= 6


def test_one_sure_stream_does_not_slow_down_many_without_draft_tokens() -> None:
    """Its speed could be five times as high, but seven others would lose a third of theirs."""
    slower = costs_of({2: 1.0, 8: 1.0, 16: 1.5})
    assert allot({1: SURE}, 8, 16, slower, ahead=True) == {}
    assert allot({1: SURE}, 1, 16, slower, ahead=True)


@given(
    st.dictionaries(
        st.integers(1, 9), st.lists(st.floats(0, 1), min_size=1, max_size=8), max_size=9
    ),
    st.integers(9, 14),
    st.integers(9, 16),
    st.booleans(),
)
def test_no_limit_is_exceeded(
    drawn: dict[int, list[float]], decodes: int, most: int, ahead: bool
) -> None:
    chances = {id: sorted(row, reverse=True) for id, row in drawn.items()}
    made = allot(chances, min(decodes, most), most, CHEAP, ahead=ahead)
    assert min(decodes, most) + sum(made.values()) <= most
    assert all(0 < count <= len(chances[id]) for id, count in made.items())


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
