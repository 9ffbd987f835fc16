"""Odds follow what was seen, and a new sequence begins where others have been."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_server.engine.drafting.odds import Odds


@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=60), st.integers(0, 20))
def test_chances_are_chances_and_fall(noted: list[tuple[int, bool]], run: int) -> None:
    odds = Odds()
    for place, right in noted:
        odds.note(place, right)
    chances = odds.of_runs(run, 8)
    assert all(0 <= chance <= 1 for chance in chances)
    assert chances == sorted(chances, reverse=True)


@pytest.mark.parametrize("right", [True, False])
def test_a_long_run_of_one_outcome_is_believed(right: bool) -> None:
    odds = Odds()
    for _ in range(60):
        odds.note(0, right)
    assert odds.of_runs(0, 1)[0] == pytest.approx(float(right), abs=0.01)


def test_a_new_sequence_begins_with_the_odds_of_those_before() -> None:
    shared = Odds()
    for _ in range(20):
        one = Odds(shared)
        for _ in range(30):
            one.note(0, False)
    assert Odds(shared).of_runs(0, 1)[0] < 0.05


def test_runs_of_other_lengths_keep_their_own_odds() -> None:
    odds = Odds()
    before = odds.of_runs(8, 1)
    for _ in range(50):
        odds.note(0, False)
    assert odds.of_runs(8, 1) == before
