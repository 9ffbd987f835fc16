"""How many pages may be on their way at once. Pure; knows nothing of what is in them."""

from __future__ import annotations


class PageRoom:
    """A bound on pages outside the pool; what is taken must be given back."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.used = 0

    def take(self, count: int) -> bool:
        """Whether there is room; if so it is taken."""
        if self.used + count > self.pages:
            return False
        self.used += count
        return True

    def give_back(self, count: int) -> None:
        self.used -= count
        assert self.used >= 0, "more pages were given back than taken"
