"""Limits the number of pages in transit."""

from __future__ import annotations


class PageRoom:
    """A budget of pages outside the pool; whatever is taken must be given back."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.used = 0

    def take(self, count: int) -> bool:
        """Take pages if that many are free; returns success."""
        if self.used + count > self.pages:
            return False
        self.used += count
        return True

    def give_back(self, count: int) -> None:
        self.used -= count
        assert self.used >= 0, "more pages were given back than taken"
