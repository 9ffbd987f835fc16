"""Pages of a FakeRunner: what layers of one kind remember of each slot's tokens."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np


class FakePages:
    """Memory of pages, a table of them for each slot, and who may write where."""

    def __init__(self, pages: int, page_size: int, slots: int, *, windowed: bool) -> None:
        """windowed: page 0 may stand in a table, for one before the window."""
        self.memory = np.full((pages + 1, page_size), -1, np.int64)
        self.tables: list[list[int]] = [[] for _ in range(slots)]
        self._holders: dict[int, int] = {}  # page -> slot it was last granted to
        self._windowed = windowed

    def grant(self, slot: int, first: int, pages: tuple[int, ...]) -> None:
        table = self.tables[slot]
        assert first <= len(table), "a page table has no holes"
        table[first:] = pages
        for page in pages:
            if self._windowed and not page:
                continue
            assert 1 <= page < len(self.memory), f"page {page} must never be granted"
            self._holders[page] = slot

    def copy(self, sources: list[int], targets: list[int]) -> None:
        """All sources are read before a target is written."""
        assert len(set(targets)) == len(targets), "two copies into one page"
        self.memory[targets] = self.memory[sources]

    def write(self, slot: int, position: int, token: int) -> tuple[int, int]:
        """Returns the page and the place in it."""
        place = self.place(slot, position)
        self.memory[place] = token
        return place

    def place(self, slot: int, position: int) -> tuple[int, int]:
        """The page and the place in it of a position that the slot may write."""
        index, offset = divmod(position, self.memory.shape[1])
        assert index < len(self.tables[slot]), f"slot {slot} has no page for position {position}"
        page = self.tables[slot][index]
        assert self._holders[page] == slot, f"page {page} was granted to another slot since"
        return page, offset

    def read(self, slot: int, count: int) -> list[int]:
        pages = self.memory[self.tables[slot]]  # i64[pages of the slot, G]
        return pages.reshape(-1)[:count].tolist()

    def fill(self, pages: Seq[int], blocks: np.ndarray) -> None:
        self.memory[list(pages)] = blocks
