"""The page pool: tracks which pages of the KV cache are free."""

from __future__ import annotations


class PagePool:
    """Pages `1 .. pages`, each granted to one owner at a time.

    Page 0 is the runner's scratch page and is never granted.
    """

    __slots__ = ("_free", "_granted", "pages")

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self._free = list(range(pages, 0, -1))  # a stack: the last is granted next
        self._granted = bytearray(pages + 1)

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return self.pages - len(self._free)

    def allocate(self) -> int:
        """Grant one page; the caller must know that one is free."""
        page = self._free.pop()
        self._granted[page] = 1
        return page

    def release(self, page: int) -> None:
        assert self._granted[page], f"page {page} is freed but nobody holds it"
        self._granted[page] = 0
        self._free.append(page)
