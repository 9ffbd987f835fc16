"""Pages of a sequence that are handed over, and a bound on those in transit. Pure.

All of a prompt's pages move; of window layers (see `window_pages`), which have a window or keep a
state, only those that the next query sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from model_server.engine.limits import EngineLimits
from model_server.engine.paging.window_pages import first_window_page_seen, most_window_pages_seen

# In transit at once, per direction: memory planned beside the page pool.
_CONTEXTS = 4  # full contexts of pages
_SEQUENCES = 16  # prompts with pages of window layers


class PageCount(NamedTuple):
    """Numbers of pages of both kinds: window layers have pages apart, if there are such layers."""

    pages: int
    window_pages: int = 0

    def bytes(self, page: int, window_pages: int) -> int:
        """Return what they take, given the bytes of one of each kind."""
        return self.pages * page + self.window_pages * window_pages


class PageNumbers(NamedTuple):
    """Numbers of the pages of a sequence that are handed over, in order of their tokens."""

    pages: tuple[int, ...]  # all of them
    window_pages: tuple[int, ...] = ()  # of the window layers, those that the next query sees


def handed_over(limits: EngineLimits, tokens: int) -> PageCount:
    """Return the pages of so many tokens; of window layers those that the next query sees."""
    pages = -(-tokens // limits.page_size)
    window_pages = (
        0 if limits.windows.sliding is None else pages - first_window_page_seen(limits, tokens)
    )
    return PageCount(pages, window_pages)


def pick(
    limits: EngineLimits, pages: Sequence[int], window_pages: Sequence[int], tokens: int
) -> PageNumbers:
    """Return the pages to hand over of two page tables; `window_pages` is () without windows."""
    count = handed_over(limits, tokens)
    return PageNumbers(
        tuple(pages[: count.pages]),
        tuple(window_pages[count.pages - count.window_pages : count.pages]),
    )


class PageAllowance:
    """A budget of pages outside the pool; whatever is taken must be given back."""

    def __init__(self, room: PageCount) -> None:
        self.room = room
        self.used = PageCount(0, 0)

    def fits(self, count: PageCount) -> bool:
        return all(a + b <= most for a, b, most in zip(self.used, count, self.room, strict=True))

    def take(self, count: PageCount) -> bool:
        if not self.fits(count):
            return False
        self.used = PageCount(
            self.used.pages + count.pages, self.used.window_pages + count.window_pages
        )
        return True

    def give_back(self, count: PageCount) -> None:
        self.used = PageCount(
            self.used.pages - count.pages, self.used.window_pages - count.window_pages
        )
        assert min(self.used) >= 0, "more pages were given back than taken"


def transit_room(limits: EngineLimits) -> PageCount:
    """Return the pages that may be in transit in one direction."""
    pages = _CONTEXTS * limits.pages_per_sequence
    return PageCount(pages, min(pages, _SEQUENCES * most_window_pages_seen(limits)))
