"""The cases of a test are read from its decorator."""

from __future__ import annotations

import pytest

from tests.each_case import cases_of, each_case


@each_case("one", ["a", "b"])
def _tries_all(one: str) -> None:
    assert one


@pytest.mark.nightly
@pytest.mark.parametrize("one", ["a", pytest.param("b", marks=pytest.mark.nightly)])
def _tries_each(one: str) -> None:
    assert one


@pytest.mark.skip
@each_case("one", ["a"])
def _skipped(one: str) -> None:
    assert one


def test_cases_are_those_that_a_test_tries() -> None:
    assert cases_of(_tries_all) == cases_of(_tries_each) == ["a", "b"]


def test_what_is_skipped_or_has_no_cases_shows_nothing() -> None:
    with pytest.raises(ValueError, match="_skipped shows nothing: it is skipped"):
        cases_of(_skipped)
    with pytest.raises(ValueError, match="has 0 lists of cases"):
        cases_of(test_cases_are_those_that_a_test_tries)
