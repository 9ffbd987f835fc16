"""Restart decisions: what follows a death, and after how long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sax.cli.local.supervisor import (
    Exit,
    GiveUp,
    Record,
    Restart,
    RestartPolicy,
    after_exit,
    cause,
    delay,
    describe_death,
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


def test_the_first_host_with_a_reason_of_its_own_ended_its_gang() -> None:
    left = [Exit(0, 75), Exit(2, -9), Exit(1, 1), Exit(3, 75)]
    assert cause(left) == Exit(2, -9)


def test_a_host_that_had_to_be_killed_is_the_silent_one() -> None:
    silent = Exit(1, -9, killed=True)
    assert cause([Exit(0, 75), Exit(2, 75), silent]) == silent
    assert cause([Exit(0, 75), silent, Exit(2, 3)]) == Exit(2, 3)


def test_when_all_lost_each_other_the_first_speaks() -> None:
    assert cause([Exit(3, 75), Exit(0, 75)]) == Exit(3, 75)


@given(st.lists(st.builds(Exit, st.integers(0, 7), st.sampled_from([0, 1, 2, 75, -9])), min_size=1))
def test_a_loss_of_a_host_is_never_the_reason_while_there_is_another(exits: list[Exit]) -> None:
    reason = cause(exits)
    assert reason in exits
    assert (reason.code == 75) == all(each.code == 75 for each in exits)


def test_a_death_in_a_gang_is_told_in_words() -> None:
    assert describe_death(Exit(1, 3)) == "died (exit code 3)"
    assert describe_death(Exit(1, -9)) == "died (killed by SIGKILL)"
    assert "stopped answering" in describe_death(Exit(1, -9, killed=True))
    assert "lost another host" in describe_death(Exit(1, 75))
    assert "hung in a step (exit code 70" in describe_death(Exit(1, 70))
