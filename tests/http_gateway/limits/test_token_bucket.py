"""A token bucket gives at most its rate and one bucketful, whatever the clock does."""

from __future__ import annotations

import math
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from http_gateway.limits.token_bucket import TokenBucket

STEPS = st.lists(st.floats(0, 120), max_size=200)


@given(rate=st.integers(1, 1000), steps=STEPS)
def test_within_any_time_it_gives_at_most_its_rate_and_one_bucketful(
    rate: int, steps: list[float]
) -> None:
    bucket, given_at = TokenBucket.full(rate, 0.0), list[float]()
    for now_s in accumulate(steps):
        bucket = bucket.at(now_s)
        while bucket.level >= 1 and len(given_at) < 3000:
            bucket = bucket.less(1)
            given_at.append(now_s)
    for first in range(0, len(given_at), 7):
        for last in range(first, len(given_at), 11):
            seconds = given_at[last] - given_at[first]
            assert last - first + 1 <= rate * seconds / 60 + rate + 1e-6


@given(rate=st.integers(1, 10**9), used=st.floats(0, 1e12), later_s=st.floats(0, 1e6))
def test_its_level_never_exceeds_it_and_what_was_used_is_paid_back_by_time_alone(
    rate: int, used: float, later_s: float
) -> None:
    bucket = TokenBucket.full(rate, 0.0).less(used)
    later = bucket.at(later_s)
    assert later.level <= rate
    expected = min(rate, rate - used + later_s * rate / 60)
    assert math.isclose(later.level, expected, rel_tol=1e-9, abs_tol=1e-3)
    full = bucket.at(bucket.full_in_s)
    assert math.isclose(full.level, rate, rel_tol=1e-9, abs_tol=1e-3)


@given(back_s=st.floats(0, 1e6))
def test_a_clock_that_goes_back_adds_nothing(back_s: float) -> None:
    bucket = TokenBucket.full(60, 1e6).less(30)
    assert bucket.at(1e6 - back_s).level == 30


@given(old=st.integers(1, 1000), new=st.integers(1, 1000), used=st.floats(0, 5000))
def test_another_rate_forgives_nothing_that_was_used(old: int, new: int, used: float) -> None:
    changed = TokenBucket.full(old, 0.0).less(used).resized(new)
    assert changed.per_minute == new
    assert changed.level <= new
    assert math.isclose(new - changed.level, used, abs_tol=1e-6)
