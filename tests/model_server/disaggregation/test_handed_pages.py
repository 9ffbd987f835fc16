"""The pages of a prompt that are handed over, and a bound on those in transit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from model_server.disaggregation.handed_pages import (
    PageAllowance,
    PageCount,
    handed_over,
    pick,
    transit_room,
)
from model_server.engine.limits import WindowLimits
from model_server.engine.paging.window_pages import most_window_pages_seen
from tests.model_server.engine.test_scheduler import limits_of


def test_what_is_given_back_can_be_taken_again() -> None:
    room = PageAllowance(PageCount(10, 4))
    assert room.take(PageCount(7, 2))
    assert not room.take(PageCount(4, 1))
    assert not room.take(PageCount(1, 3)), "there is room for pages, but not for window pages"
    assert room.used == (7, 2)
    room.give_back(PageCount(7, 2))
    assert room.take(PageCount(10, 4))


def test_more_is_never_given_back_than_was_taken() -> None:
    room = PageAllowance(PageCount(10))
    assert room.take(PageCount(2))
    with pytest.raises(AssertionError):
        room.give_back(PageCount(3))


@given(window=st.integers(2, 40), size=st.integers(1, 9), tokens=st.integers(1, 60))
def test_window_pages_that_are_handed_over_are_those_that_the_next_query_sees(
    window: int, size: int, tokens: int
) -> None:
    limits = replace(
        limits_of(page_size=size, max_context=64), windows=WindowLimits(sliding=window)
    )
    seen = range(max(0, tokens + 1 - window), tokens)
    pages, window_pages = handed_over(limits, tokens)
    assert window_pages == len({position // size for position in seen})
    assert window_pages <= most_window_pages_seen(limits)
    assert transit_room(limits).window_pages >= min(pages, window_pages)
    table, apart = range(100, 200), range(200, 300)
    numbers = pick(limits, table, apart, tokens)
    assert (len(numbers.pages), len(numbers.window_pages)) == (pages, window_pages)
    assert [*numbers.pages] == [*table[:pages]]
    assert [*numbers.window_pages] == [*apart[pages - window_pages : pages]]


def test_a_state_is_handed_over_in_one_page_and_layers_that_see_all_have_no_other() -> None:
    limits = replace(
        limits_of(page_size=4, max_context=64), windows=WindowLimits(sliding=2, recurrent=True)
    )
    assert [handed_over(limits, tokens) for tokens in (1, 4, 5, 33)] == [
        (1, 1),
        (1, 1),
        (2, 1),
        (9, 1),
    ]
    assert handed_over(replace(limits, windows=WindowLimits()), 33) == (9, 0)
