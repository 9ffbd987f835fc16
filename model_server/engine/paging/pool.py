"""The page pool: who holds each page of the KV cache, and which pages are free."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable


class PagePool:
    """Pages `1 .. pages`, each granted to one owner, who may share it with others.

    Page 0 is the runner's scratch page and is never granted. A kept page stays readable after its
    last holder has released it: it is then free, but granted only when no other page is, the one
    that was released first before the others. Every call takes the same time for any pool.
    """

    __slots__ = ("_evicted", "_free", "_holders", "_idle", "_kept", "evictions", "pages")

    def __init__(self, pages: int, evicted: Callable[[int], None] = lambda page: None) -> None:
        """evicted: called with a kept page when it is granted anew."""
        self.pages = pages
        self.evictions = 0
        self._evicted = evicted
        self._free = list(range(pages, 0, -1))  # a stack: the last is granted next
        self._idle: OrderedDict[int, None] = OrderedDict()  # kept, and held by nobody
        self._holders = [0] * (pages + 1)
        self._kept = bytearray(pages + 1)

    @property
    def free(self) -> int:
        """Pages that `allocate` can grant, kept ones included."""
        return len(self._free) + len(self._idle)

    @property
    def used(self) -> int:
        return self.pages - self.free

    @property
    def idle(self) -> int:
        """Kept pages that nobody holds."""
        return len(self._idle)

    def holders(self, page: int) -> int:
        return self._holders[page]

    def only_held_by(self, owners: Iterable[list[int]]) -> set[int]:
        """Return the pages that become free if all these owners release theirs."""
        counts = Counter(page for pages in owners for page in pages if page)
        return {page for page, count in counts.items() if count == self._holders[page]}

    def allocate(self) -> int:
        """Grant one page; the caller must know that one is free."""
        if self._free:
            page = self._free.pop()
        else:
            page, _ = self._idle.popitem(last=False)
            self._kept[page] = 0
            self.evictions += 1
            self._evicted(page)
        self._holders[page] = 1
        return page

    def share(self, page: int) -> None:
        """Add a holder to a page that is held or kept."""
        if not self._holders[page]:
            del self._idle[page]
        self._holders[page] += 1

    def release(self, page: int, *, cold: bool = False) -> None:
        """cold: if it is kept, it is granted anew before all other kept ones."""
        assert self._holders[page], f"page {page} is freed but nobody holds it"
        self._holders[page] -= 1
        if self._holders[page]:
            return
        if self._kept[page]:
            self._idle[page] = None
            if cold:
                self._idle.move_to_end(page, last=False)
        else:
            self._free.append(page)

    def keep(self, page: int) -> None:
        """Let a page that is held stay readable once it is released."""
        assert self._holders[page], f"page {page} is kept but nobody holds it"
        self._kept[page] = 1

    def drop(self, page: int) -> None:
        """Keep the page no longer."""
        self._kept[page] = 0
        if page in self._idle:
            del self._idle[page]
            self._free.append(page)
