"""Measured times of buckets and of steps; prompts keep the mean step within a ratio."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_server.engine.buckets import Bucket
from model_server.engine.step_times import (
    BURST_RATIO,
    BURST_S,
    CREDIT_S,
    GRANT_S,
    RATIO,
    Pace,
    StepTimes,
)
from model_server.engine.types import Row, Step
from tests.model_server.examples import examples

BUCKETS = (Bucket(2, 0), Bucket(8, 0), Bucket(8, 1), Bucket(8, 4))


def test_a_step_takes_as_long_as_the_bucket_that_holds_it() -> None:
    times = StepTimes.measured(BUCKETS, [1.0, 2.0, 4.0, 8.0], block=32)
    assert times is not None
    assert [times.of(*step) for step in [(1, 0), (3, 0), (0, 1), (8, 2)]] == [1.0, 2.0, 4.0, 8.0]
    assert times.longest_s == 8.0
    with pytest.raises(ValueError, match="no bucket holds"):
        times.of(9, 0)


def test_times_of_further_programs_are_not_of_steps() -> None:
    times = StepTimes.measured(BUCKETS, [1.0, 2.0, 4.0, 8.0, 99.0], block=32)
    assert times is not None
    assert times.longest_s == 8.0


def test_a_runner_without_programs_has_no_times() -> None:
    assert StepTimes.measured(BUCKETS, [], block=32) is None


def test_a_disturbed_measurement_counts_as_that_of_a_larger_step() -> None:
    times = StepTimes.measured(BUCKETS, [9.0, 2.0, 4.0, 3.0], block=32)
    assert times is not None
    assert times.seconds == (2.0, 2.0, 3.0, 3.0)


def test_where_padding_is_skipped_a_step_takes_what_its_own_rows_take() -> None:
    times = StepTimes.measured(BUCKETS, [1.0, 4.0, 8.0, 20.0], block=32, skips=True)
    assert times is not None
    assert times.of(1, 0) == times.of(2, 0) == 1.0  # the smallest that was measured
    assert times.of(5, 0) == 2.5
    assert times.of(8, 0) == 4.0
    assert times.of(0, 1) == 4.0 + 4.0 * 24 / 32  # 32 rows, between 8 and 40
    assert times.of(8, 1) == 8.0
    assert times.of(8, 4) == 20.0
    with pytest.raises(ValueError, match="no bucket holds"):
        times.of(9, 0)


DECODES, SIZES = (2, 8, 16), (1, 4, 8)
SHAPES = (*(Bucket(each, 0) for each in DECODES), *(Bucket(16, size) for size in SIZES))


@st.composite
def times(draw: st.DrawFn) -> StepTimes:
    """Larger buckets take longer, by any factor up to 30."""
    steps = draw(st.lists(st.floats(0.001, 5.0), min_size=6, max_size=6))
    return StepTimes(SHAPES, tuple(sum(steps[: index + 1]) for index in range(6)), 32)


def step_of(decodes: int, blocks: int) -> Step:
    rows = [Row(id, slot=id, start=9, tokens=(), yields=True) for id in range(decodes)]
    if blocks:
        rows.append(Row(99, slot=99, start=0, tokens=(1,) * (32 * blocks), yields=False))
    return Step(1, tuple(rows))


def play(
    pace: Pace, measured: StepTimes, decodes: int, steps: int, alone: float, beside: float
) -> list[int]:
    """Run steps while prompts wait; return the blocks of each.

    alone, beside: what steps without and with prompts take, by what they took at load.
    """
    allotted: list[int] = []
    for _ in range(steps):
        blocks = pace.blocks(decodes) or 0
        allotted.append(blocks)
        pace.took(step_of(decodes, blocks), seconds(measured, decodes, blocks, alone, beside))
    return allotted


def seconds(measured: StepTimes, decodes: int, blocks: int, alone: float, beside: float) -> float:
    return measured.of(decodes, blocks) * (beside if blocks else alone)


FACTORS = st.floats(0.6, 3.9)


@examples(times(), st.integers(1, 16), st.integers(1, 300), FACTORS, FACTORS, few=30, many=100)
def test_steps_with_prompts_take_at_most_the_ratio_on_average_but_for_the_credit(
    measured: StepTimes, decodes: int, steps: int, alone: float, beside: float
) -> None:
    pace = Pace(measured, None)
    for _ in range(200):  # it learns what steps take now
        for blocks in (1, 0):
            pace.took(step_of(decodes, blocks), seconds(measured, decodes, blocks, alone, beside))
    allotted = play(pace, measured, decodes, steps, alone, beside)
    took_s = sum(seconds(measured, decodes, each, alone, beside) for each in allotted)
    alone_s = steps * measured.of(decodes, 0) * alone
    credit_s = max(CREDIT_S, seconds(measured, decodes, 1, alone, beside))
    assert took_s <= (RATIO * alone_s + credit_s) * (1 + 1e-6)


@examples(times(), st.integers(1, 16), few=15, many=100)
def test_prompts_always_get_on(measured: StepTimes, decodes: int) -> None:
    pace = Pace(measured, None)
    dearest = max(measured.seconds) / min(measured.seconds)
    patience = int(dearest / (RATIO - 1)) + 2
    allotted = play(pace, measured, decodes, 2 * patience + 300, 1.0, 1.0)
    assert sum(allotted[:patience]) > 0
    assert sum(allotted[-patience:]) > 0


@given(st.floats(0.001, 0.04), st.integers(1, 16))
def test_a_burst_is_computed_in_full_steps(second: float, decodes: int) -> None:
    """Full steps take an eighth of a second at most, so that the credit is enough for ten."""
    measured = StepTimes(SHAPES, tuple(second * size for size in (0.2, 0.3, 0.4, 1, 2, 3)), 32)
    pace = Pace(measured, None)
    assert set(play(pace, measured, decodes, 10, 1.0, 1.0)) == {max(SIZES)}


@given(times(), st.integers(1, 16))
def test_a_burst_never_stops_streams_for_longer_than_one_block_would(
    measured: StepTimes, decodes: int
) -> None:
    """Where steps take longer now than at load, too."""
    pace = Pace(measured, None)
    for _ in range(100):
        for blocks in (1, 0):
            pace.took(step_of(decodes, blocks), 1.7 * measured.of(decodes, blocks))
    blocks = pace.blocks(decodes)
    assert blocks is not None
    longest_s = max(BURST_S, BURST_RATIO * 1.7 * measured.of(decodes, 0))
    assert blocks <= 1 or 1.7 * measured.of(decodes, blocks) <= longest_s * 1.001


@given(times(), st.integers(1, 16))
def test_steps_of_prompts_alone_restore_the_credit(measured: StepTimes, decodes: int) -> None:
    spent, fresh = Pace(measured, None), Pace(measured, None)
    play(spent, measured, decodes, 100, 1.0, 1.0)
    spent.took(step_of(0, 1), measured.of(0, 1))
    assert [spent.blocks(decodes)] == [fresh.blocks(decodes)]


def test_a_stream_that_begins_gives_back_what_its_prompt_took() -> None:
    """A prompt of four blocks takes as much as three decode steps more."""
    measured = StepTimes(SHAPES, (0.1, 0.1, 0.1, 0.2, 0.4, 0.7), 32)
    pace = Pace(measured, None)
    while (pace.blocks(8) or 0) > 1:
        pace.took(step_of(8, 8), 0.7)
    held_back = [pace.blocks(8)]
    pace.begin(4 * 32, 1.0)
    assert held_back < [4] <= [pace.blocks(8)]
    assert Pace(None, None).begin(4 * 32, 1.0) is None


@given(times(), st.integers(1, 16), st.integers(1, 100_000), st.floats(0.0, 1.0))
def test_no_stream_gives_back_more_than_the_first_credit_or_than_a_second(
    measured: StepTimes, decodes: int, tokens: int, share: float
) -> None:
    fresh, pace = Pace(measured, None), Pace(measured, None)
    pace.begin(tokens, share)
    assert pace.blocks(decodes) == fresh.blocks(decodes)
    play(pace, measured, decodes, 100, 1.0, 1.0)
    spent = (pace.blocks(decodes) or 0, measured.of(decodes, 0))
    pace.begin(tokens, share)
    allowed_s = RATIO * spent[1] + max(CREDIT_S, measured.of(decodes, 1))
    assert spent[0] <= (blocks := pace.blocks(decodes) or 0)
    assert blocks == spent[0] or measured.of(decodes, blocks) <= 2 * (allowed_s + GRANT_S)


@given(times())
def test_prompts_alone_are_not_limited(measured: StepTimes) -> None:
    assert Pace(measured, None).blocks(0) is None
    assert Pace(measured, 3).blocks(0) is None
    assert Pace(None, None).blocks(7) is None


@given(times(), st.integers(1, 16), st.integers(1, 8))
def test_a_limit_set_by_hand_wins_over_times(measured: StepTimes, decodes: int, most: int) -> None:
    assert Pace(measured, most).blocks(decodes) == most


def test_where_padding_is_skipped_any_number_of_blocks_may_fit() -> None:
    buckets = (Bucket(2, 0), Bucket(2, 1), Bucket(2, 8))
    seconds = (10.0, 10.0 + 3 * 32 / 32, 10.0 + 3 * 8)
    assert Pace(StepTimes(buckets, seconds, 32, skips=True), None).blocks(2) == 3
    assert Pace(StepTimes(buckets, seconds, 32, skips=False), None).blocks(2) == 1
