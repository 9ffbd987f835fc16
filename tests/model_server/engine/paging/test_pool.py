"""The page pool gives every page once and takes it back once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_server.engine.paging.pool import PagePool


def test_all_pages_but_the_scratch_page_are_granted_once() -> None:
    pool = PagePool(5)
    assert sorted(pool.allocate() for _ in range(5)) == [1, 2, 3, 4, 5]
    assert (pool.free, pool.used) == (0, 5)


def test_a_page_freed_twice_is_an_assertion() -> None:
    pool = PagePool(2)
    page = pool.allocate()
    pool.release(page)
    with pytest.raises(AssertionError, match=f"page {page} is freed but nobody holds it"):
        pool.release(page)


def test_the_scratch_page_cannot_be_freed() -> None:
    with pytest.raises(AssertionError, match="page 0"):
        PagePool(2).release(0)


@given(st.integers(1, 9), st.lists(st.integers(-1, 8)))
def test_pages_are_conserved(pages: int, moves: list[int]) -> None:
    pool, held = PagePool(pages), list[int]()
    for move in moves:
        if move >= 0 and held:
            pool.release(held.pop(move % len(held)))
        elif pool.free:
            held.append(pool.allocate())
        assert len(set(held)) == len(held) == pool.used
        assert pool.free == pages - len(held)
