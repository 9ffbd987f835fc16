"""Whom a model server obeys."""

import pytest

from model_server.services.modelet import Fencing
from sax.errors import NotLeading


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
