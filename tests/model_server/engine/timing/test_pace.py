"""Prompt blocks beside decodes: the mean step stays within the ratio, and prompts get on."""

from hypothesis import given
from hypothesis import strategies as st

from model_server.engine.buckets import Bucket
from model_server.engine.timing.pace import RATIO, Pace
from model_server.engine.timing.step_times import StepTimes
from model_server.engine.types import Row, Step

DECODES, SIZES = (2, 8, 16), (1, 4, 8)
BUCKETS = (*(Bucket(each, 0) for each in DECODES), *(Bucket(16, size) for size in SIZES))


@st.composite
def times(draw: st.DrawFn) -> StepTimes:
    """Larger buckets take longer, by any factor up to 30."""
    steps = draw(st.lists(st.floats(0.001, 5.0), min_size=6, max_size=6))
    return StepTimes(BUCKETS, tuple(sum(steps[: index + 1]) for index in range(6)), 32)


@given(times(), st.integers(1, 16), st.integers(1, 200))
def test_steps_with_prompts_take_at_most_twice_as_long_as_decodes_on_average(
    measured: StepTimes, decodes: int, steps: int
) -> None:
    pace = Pace(measured, None)
    allotted = [pace.blocks(decodes) for _ in range(steps)]
    took_s = sum(measured.of(decodes, blocks or 0) for blocks in allotted)
    alone_s = steps * measured.of(decodes, 0)
    assert took_s <= RATIO * alone_s * (1 + 1e-9)


@given(times(), st.lists(st.integers(1, 16), min_size=1, max_size=20))
def test_prompts_always_get_on(measured: StepTimes, decodes: list[int]) -> None:
    pace = Pace(measured, None)
    dearest = max(measured.seconds) / min(measured.seconds)
    patience = int(dearest / (RATIO - 1)) + 2
    allotted = [pace.blocks(decodes[step % len(decodes)]) or 0 for step in range(2 * patience)]
    assert sum(allotted[:patience]) > 0
    assert sum(allotted[patience:]) > 0


@given(times(), st.integers(1, 16))
def test_as_many_blocks_as_fit_are_allotted_in_every_step(
    measured: StepTimes, decodes: int
) -> None:
    allowed_s = RATIO * measured.of(decodes, 0)
    fitting = [size for size in SIZES if measured.of(decodes, size) <= allowed_s]
    pace = Pace(measured, None)
    if fitting:
        assert [pace.blocks(decodes) for _ in range(5)] == [max(fitting)] * 5
    else:
        assert {pace.blocks(decodes) for _ in range(5)} <= {0, 1}


@given(times())
def test_prompts_alone_are_not_limited(measured: StepTimes) -> None:
    assert Pace(measured, None).blocks(0) is None
    assert Pace(measured, 3).blocks(0) is None
    assert Pace(None, None).blocks(7) is None


@given(times(), st.integers(1, 16), st.integers(1, 8))
def test_a_limit_set_by_hand_wins_over_times(measured: StepTimes, decodes: int, most: int) -> None:
    assert Pace(measured, most).blocks(decodes) == most


def step_of(decodes: int, blocks: int) -> Step:
    rows = [Row(id, slot=id, start=9, tokens=(), yields=True) for id in range(decodes)]
    if blocks:
        rows.append(Row(99, slot=99, start=0, tokens=(1,) * (32 * blocks), yields=False))
    return Step(1, tuple(rows))


@given(times(), st.integers(1, 16), st.floats(0.6, 3.9), st.floats(0.6, 3.9))
def test_steps_that_take_longer_than_at_load_are_allotted_as_if_they_had_taken_that_then(
    measured: StepTimes, decodes: int, alone: float, beside: float
) -> None:
    pace = Pace(measured, None)
    for _ in range(200):
        for blocks, factor in ((0, alone), (1, beside)):
            pace.took(step_of(decodes, blocks), factor * measured.of(decodes, blocks))
    allotted = [pace.blocks(decodes) or 0 for _ in range(200)]
    now_s = [measured.of(decodes, blocks) * (beside if blocks else alone) for blocks in allotted]
    assert sum(now_s) <= RATIO * 200 * measured.of(decodes, 0) * alone * (1 + 1e-6)


def test_where_padding_is_skipped_any_number_of_blocks_may_fit() -> None:
    buckets = (Bucket(2, 0), Bucket(2, 1), Bucket(2, 8))
    seconds = (10.0, 10.0 + 3 * 32 / 32, 10.0 + 3 * 8)
    assert Pace(StepTimes(buckets, seconds, 32, skips=True), None).blocks(2) == 3
    assert Pace(StepTimes(buckets, seconds, 32, skips=False), None).blocks(2) == 1
