"""Measured times of buckets, and which step has which."""

import pytest

from model_server.engine.buckets import Bucket
from model_server.engine.timing.step_times import StepTimes

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
