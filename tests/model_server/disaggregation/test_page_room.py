"""A bound on pages outside the pool."""

import pytest

from model_server.disaggregation.transfers import PageAllowance


def test_what_is_given_back_can_be_taken_again() -> None:
    room = PageAllowance(10)
    assert room.take(7)
    assert not room.take(4)
    assert room.used == 7
    room.give_back(7)
    assert room.take(10)


def test_more_is_never_given_back_than_was_taken() -> None:
    room = PageAllowance(10)
    assert room.take(2)
    with pytest.raises(AssertionError):
        room.give_back(3)
