"""Pages of a sequence that are handed over, and a bound on those in transit. Pure.

All of a prompt's pages move; of near layers (see `near_pages`), which have a window or keep a
state, only those that the next query sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from model_server.engine.paging.near_count import first_near_seen, most_near_seen
from model_server.engine.types import EngineLimits

# In transit at once, per direction: memory planned beside the page pool.
_CONTEXTS = 4  # full contexts of pages
_SEQUENCES = 16  # prompts with pages of near layers


class PageCount(NamedTuple):
    """Numbers of pages of both kinds: those of near layers are apart, if there are such layers."""

    pages: int
    near: int = 0

    def bytes(self, page: int, near: int) -> int:
        """Return what they take, given the bytes of one of each kind."""
        return self.pages * page + self.near * near


class PageNumbers(NamedTuple):
    """Numbers of the pages of a sequence that are handed over, in order of their tokens."""

    pages: tuple[int, ...]  # all of them
    near: tuple[int, ...] = ()  # of the near layers, those that the next query sees


def handed_over(limits: EngineLimits, tokens: int) -> PageCount:
    """Return the pages of so many tokens; of near layers those that the next query sees."""
    pages = -(-tokens // limits.page_size)
    near = 0 if limits.near_window is None else pages - first_near_seen(limits, tokens)
    return PageCount(pages, near)


def pick(
    limits: EngineLimits, pages: Sequence[int], near: Sequence[int], tokens: int
) -> PageNumbers:
    """Return the pages to hand over of a page table and of that of near layers, () without any."""
    count = handed_over(limits, tokens)
    return PageNumbers(
        tuple(pages[: count.pages]), tuple(near[count.pages - count.near : count.pages])
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
        self.used = PageCount(self.used.pages + count.pages, self.used.near + count.near)
        return True

    def give_back(self, count: PageCount) -> None:
        self.used = PageCount(self.used.pages - count.pages, self.used.near - count.near)
        assert min(self.used) >= 0, "more pages were given back than taken"


def transit_room(limits: EngineLimits) -> PageCount:
    """Return the pages that may be in transit in one direction."""
    pages = _CONTEXTS * limits.pages_per_sequence
    return PageCount(pages, min(pages, _SEQUENCES * most_near_seen(limits)))
