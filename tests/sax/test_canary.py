"""Percentages of a canary, and how many replicas serve it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sax.canary import canary_replicas, canary_spec, read_percent, replicas_with_canary
from sax.errors import InvalidRequest
from sax.types import Canary, ModelSpec
from tests.each_case import each_case


@pytest.mark.parametrize(("text", "percent"), [("10%", 10), ("2.5", 2.5), (" 99 %", 99)])
def test_a_percentage_is_read_with_or_without_its_sign(text: str, percent: float) -> None:
    assert read_percent(text) == percent


@each_case("text", ["", "ten", "0", "100%", "-1", "nan", "inf", "1/2"])
def test_nothing_all_and_nonsense_are_refused_with_what_to_give(text: str) -> None:
    with pytest.raises(InvalidRequest, match="%") as refused:
        read_percent(text)
    assert refused.value.param == "canary"


@given(st.integers(0, 1000), st.floats(0.01, 99.99))
def test_a_canary_has_a_replica_and_leaves_one_wherever_there_are_two(
    replicas: int, percent: float
) -> None:
    share = canary_replicas(replicas, percent)
    assert share == 0 if replicas < 2 else 1 <= share < replicas
    assert abs(share - replicas * percent / 100) <= 1


def test_a_lone_replica_gets_a_second_one_beside_it() -> None:
    canary = Canary(version="c" * 32, checkpoint="/two", percent=10)
    assert [replicas_with_canary(n, canary) for n in range(4)] == [0, 2, 2, 3]
    assert [replicas_with_canary(n, None) for n in range(4)] == [0, 1, 2, 3]


def test_the_spec_of_a_canary_is_the_models_but_for_what_is_loaded() -> None:
    canary = Canary(version="c" * 32, checkpoint="/two", overrides={"A": "1"}, percent=10)
    spec = ModelSpec(
        model_id="/sax/test/m",
        model_path="llama",
        checkpoint="/one",
        replicas=3,
        acls={"lm.generate": "all"},
        version="a" * 32,
        revision=7,
        canary=canary,
    )
    new = canary_spec(spec, canary)
    assert (new.checkpoint, new.overrides, new.version) == ("/two", {"A": "1"}, "c" * 32)
    assert (new.replicas, new.acls, new.revision, new.canary) == (3, spec.acls, 7, None)
