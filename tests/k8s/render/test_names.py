"""Names that controllers make longer: the limits, at them and one beyond."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8s.render.names import (
    LONGEST,
    check_jobset,
    check_label,
    check_leader_worker_set,
    check_service,
    slug,
)
from sax.errors import InvalidName
from tests.each_case import each_case

_LABELS = st.from_regex(r"[a-z]([-a-z0-9]{0,70}[a-z0-9])?", fullmatch=True)


def test_the_tutorials_names_fit() -> None:
    name = "sax-model-server-set"
    check_jobset(name, "sax-model-server", replicas=2, pods=8)
    check_jobset(name, "sax-model-server", replicas=2, pods=8, has_coordinator=True)


def test_the_coordinator_of_a_jobset_has_its_name_twice() -> None:
    """sax-model-server-set has 20 letters, and 62 in its coordinator's name."""
    with pytest.raises(InvalidName, match="make it 1 shorter .20 at most"):
        check_jobset("a" * 21, "sax-model-server", replicas=1, pods=8, has_coordinator=True)
    check_jobset("a" * 28, "m", replicas=1, pods=8, has_coordinator=True)
    with pytest.raises(InvalidName, match="its coordinator"):
        check_jobset("a" * 29, "m", replicas=1, pods=8, has_coordinator=True)


def test_without_a_coordinator_the_pods_are_the_limit() -> None:
    check_jobset("a" * 36, "sax-model-server", replicas=1, pods=8)
    with pytest.raises(InvalidName, match="36 at most"):
        check_jobset("a" * 37, "sax-model-server", replicas=1, pods=8)


def test_pods_are_numbered_and_the_numbers_count() -> None:
    check_jobset("a" * 2, "m" * 48, replicas=10, pods=10)
    with pytest.raises(InvalidName, match="its pods"):
        check_jobset("a" * 2, "m" * 50, replicas=11, pods=11)


def test_a_leader_worker_set_makes_stateful_sets_with_revisions() -> None:
    check_leader_worker_set("a" * 50, replicas=10)
    with pytest.raises(InvalidName, match="50 at most"):
        check_leader_worker_set("a" * 51, replicas=10)
    with pytest.raises(InvalidName, match="49 at most"):
        check_leader_worker_set("a" * 50, replicas=11)


@each_case("name", ["", "-a", "a-", "A", "a.b", "a_b", "a\n", "a b", "é", "a" * 64])
def test_what_is_no_label_is_refused(name: str) -> None:
    with pytest.raises(InvalidName, match="lower-case letters"):
        check_label(name, "namespace")


def test_a_service_begins_with_a_letter() -> None:
    assert check_label("7b", "namespace") == "7b"
    with pytest.raises(InvalidName, match="begin with a letter"):
        check_service("7b", "name")


@given(_LABELS, _LABELS, st.integers(1, 999), st.integers(1, 9999), st.booleans())
def test_whatever_is_let_through_makes_names_that_are_allowed(
    name: str, job: str, replicas: int, pods: int, coordinator: bool
) -> None:
    try:
        check_jobset(name, job, replicas=replicas, pods=pods, has_coordinator=coordinator)
    except InvalidName:
        return
    made = (f"{name}-{job}-{replicas - 1}-{pods - 1}-abcde", f"{name}-{job}-{replicas - 1}", name)
    assert all(len(each) <= LONGEST for each in made)
    assert len(f"{name}-{job}-0-0.{name}") <= LONGEST or not coordinator


@given(st.text(max_size=100), st.integers(1, LONGEST))
def test_any_text_makes_a_label_or_nothing(text: str, longest: int) -> None:
    made = slug(text, longest)
    assert made == "" or (re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", made))
    assert len(made) <= longest
