"""Whom a model server obeys."""

import pytest

from model_server.services.fencing import Fencing
from sax.errors import InvalidRequest, NotLeading


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_an_older_term_is_refused_by_name():
    terms = Fencing(Clock())
    terms.check(7)
    with pytest.raises(NotLeading, match="term 7.*term 5"):
        terms.check(5)
    terms.check(7)
    terms.check(9)


def test_an_admin_that_knows_no_terms_is_obeyed():
    terms = Fencing(Clock())
    terms.check(7)
    terms.check(0)


def test_a_term_that_was_silent_for_long_is_forgotten():
    clock = Clock()
    terms = Fencing(clock)
    terms.check(7)
    clock.now += 31
    terms.check(1)
    with pytest.raises(NotLeading):
        terms.check(-1)


def test_a_refusal_names_the_term_that_is_obeyed():
    terms = Fencing(Clock())
    terms.check(7)
    with pytest.raises(NotLeading) as refusal:
        terms.check(5)
    assert refusal.value.param == "7"


def test_a_term_that_no_log_can_reach_is_refused_and_changes_nothing():
    terms = Fencing(Clock())
    terms.check(7)
    with pytest.raises(InvalidRequest) as refusal:
        terms.check(2**62)
    assert refusal.value.param == "term"
    terms.check(7)


def test_a_disputed_term_is_obeyed_no_more():
    terms = Fencing(Clock())
    terms.check(10**11)
    terms.dispute(7, 10**11)
    terms.check(7)
    with pytest.raises(NotLeading, match="disputed a later one"):
        terms.check(10**11)
    terms.check(7)


def test_after_a_dispute_the_next_leader_is_obeyed_once_it_has_read_the_log():
    terms = Fencing(Clock())
    terms.check(10**11)
    terms.dispute(7, 10**11)
    with pytest.raises(NotLeading) as refusal:
        terms.check(9)
    terms.dispute(9, int(refusal.value.param or ""))
    terms.check(9)
    with pytest.raises(NotLeading, match="term 9.*term 7"):
        terms.check(7)


def test_a_dispute_of_a_term_that_is_not_obeyed_counts_as_a_word_of_its_leader():
    terms = Fencing(Clock())
    terms.check(9)
    with pytest.raises(NotLeading):
        terms.dispute(7, 8)
    terms.check(9)


def test_a_server_is_wary_for_a_while_only():
    clock = Clock()
    terms = Fencing(clock)
    terms.check(10**11)
    terms.dispute(7, 10**11)
    clock.now += 31
    terms.check(9)
