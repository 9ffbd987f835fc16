"""Restart decisions: what follows a death, and after how long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sax.cli.restarts import (
    GiveUp,
    Record,
    Restart,
    RestartPolicy,
    after_exit,
    delay,
    describe_exit,
)

POLICY = RestartPolicy(first_s=1, longest_s=8, steady_s=60, early_deaths=3)


def test_a_child_that_once_answered_is_restarted_for_ever_with_a_doubling_bounded_delay() -> None:
    record = Record(answered=True)
    delays: list[float] = []
    for _ in range(6):
        decision = after_exit(record, code=-9, lived_s=1, policy=POLICY)
        assert isinstance(decision, Restart)
        record = decision.record
        delays.append(decision.delay_s)
    assert delays == [1, 2, 4, 8, 8, 8]


def test_a_long_life_forgives_what_went_before() -> None:
    decision = after_exit(Record(5, answered=True), code=1, lived_s=61, policy=POLICY)
    assert decision == Restart(Record(1, answered=True), 1)


def test_a_child_that_never_answered_is_given_up_after_a_few_deaths() -> None:
    first = after_exit(Record(), code=1, lived_s=1, policy=POLICY)
    assert first == Restart(Record(1), 1)
    second = after_exit(Record(1), code=1, lived_s=1, policy=POLICY)
    assert second == Restart(Record(2), 2)
    assert isinstance(after_exit(Record(2), code=1, lived_s=1, policy=POLICY), GiveUp)


def test_refused_flags_are_not_tried_again() -> None:
    assert isinstance(after_exit(Record(), code=2, lived_s=1, policy=POLICY), GiveUp)
    again = after_exit(Record(answered=True), code=2, lived_s=1, policy=POLICY)
    assert isinstance(again, Restart)


@given(st.integers(1, 10_000))
def test_the_delay_grows_and_stays_within_its_bounds(failures: int) -> None:
    assert POLICY.first_s <= delay(failures, POLICY) <= POLICY.longest_s
    assert delay(failures, POLICY) <= delay(failures + 1, POLICY)


def test_an_exit_status_is_told_in_words() -> None:
    assert describe_exit(3) == "exit code 3"
    assert describe_exit(-9) == "killed by SIGKILL"
    assert describe_exit(-250) == "killed by signal 250"


def test_a_policy_that_cannot_work_is_refused() -> None:
    with pytest.raises(ValueError, match="first_s"):
        RestartPolicy(first_s=5, longest_s=1)
    with pytest.raises(ValueError, match="early_deaths"):
        RestartPolicy(early_deaths=0)
