"""Pages of the layers with a sliding window, in a model of which other layers see all. Pure.

Those layers have page arrays and page tables of their own, so that a page that no later query sees
is free, while the other layers keep theirs. `paging.window_pages` has an entry for each of its
`pages`: a page of this pool, or 0 for one that lies before the window of every later query.

The pool has so many pages that a grant never fails (`window_page_count`): nothing waits for one.

The prefix cache finds pages of the other layers by their contents. The window page with the same
tokens is the twin of such a page, until it is granted anew. Only so much of a prefix is of use as
its next query sees twins of: one that was freed in the middle of a sequence is of use only to those
that part there. It is granted anew before those at an end, unless a sequence is known to have
parted there, and before those that come earlier in a prompt.
"""

from __future__ import annotations

from collections.abc import Iterable

from model_server.engine.limits import EngineLimits
from model_server.engine.paging.pool import PagePool
from model_server.engine.paging.prefix import Prefix
from model_server.engine.sequence import Sequence, redone


def window_page_count(limits: EngineLimits) -> int:
    """Return the pages with which a grant never fails; 0: the layers have pages in common.

    A sequence never holds more of them than of the others. Nor does it hold more than its window
    takes, beside what one step computes, and a page that it copies. The states behind draft tokens
    have further pages.
    """
    return min(limits.pages, most_window_pages(limits)) + limits.draft_states


def most_window_pages(limits: EngineLimits) -> int:
    """Return the pages that all slots need at once, however many tokens their sequences have.

    With a prefix cache, as many again keep the last windows of those who left.
    """
    if limits.windows.sliding is None:
        return 0
    # Two positions may be done again; draft tokens lie behind the next one, and some came true
    # since.
    seen = limits.windows.sliding + 2 + 2 * limits.draft_tokens
    window = -(-seen // limits.page_size) + 1
    begun, copied = 1, not limits.windows.recurrent  # of a page with a state no part is copied
    pages = limits.slots * (window + begun + copied) + limits.token_budget // limits.page_size
    return pages if limits.prefix_cache == "off" else 2 * pages


def most_window_pages_seen(limits: EngineLimits) -> int:
    """Return the window pages that one query sees at most, of tokens before it."""
    if limits.windows.sliding is None:
        return 0
    before = max(1, limits.windows.sliding - 1)
    return min(limits.pages_per_sequence, -(-(before - 1) // limits.page_size) + 1)


def first_window_page_seen(limits: EngineLimits, position: int) -> int:
    """Return the index of the first window page that a query at a position sees."""
    assert limits.windows.sliding is not None, "all layers have pages in common"
    return max(0, position + 1 - limits.windows.sliding) // limits.page_size


class WindowPages:
    """The window pages of all running sequences, and those that are twins of others."""

    def __init__(self, limits: EngineLimits) -> None:
        self.pool = PagePool(window_page_count(limits), self._granted_anew)
        self._limits = limits
        self._size = limits.page_size
        self._twins: dict[int, int] = {}  # twins by page of the other layers
        self._page: dict[int, int] = {}  # the reverse

    def cover(self, sequence: Sequence) -> None:
        """Grant an entry for each of the sequence's pages that has none."""
        first = self._first_seen(sequence.launched)
        for index in range(len(sequence.paging.window_pages), len(sequence.pages)):
            sequence.paging.window_pages.append(self.pool.allocate() if index >= first else 0)

    def reuse(self, sequence: Sequence, found: Prefix) -> None:
        """Let a sequence begin with the pages that were found."""
        self._share(found.window_pages)
        sequence.paging.window_pages = list(found.window_pages)
        sequence.paging.window_known = found.known

    def copy(self, sequence: Sequence, source: int) -> None:
        """Hold the page that a sequence will copy."""
        self._share((source,))
        sequence.paging.window_source = source

    def follow(self, sequence: Sequence, parent: Sequence, full: int, rest: int) -> None:
        """Let an empty one begin with its parent's first pages; of the last one it has a rest."""
        pages = parent.paging.window_pages
        self._share(pages[:full])
        sequence.paging.window_pages = pages[:full]
        sequence.paging.window_unseen = 0
        if rest:
            self.copy(sequence, pages[full])

    def free_unseen(self, sequence: Sequence, followed: Iterable[int]) -> None:
        """Free what no later query sees, but for those that others begin with.

        followed: positions at which these begin.
        """
        paging = sequence.paging
        last = min(self._first_seen(sequence.launched - redone(sequence)), len(paging.window_pages))
        seen = [self._seen_from(each) for each in followed]
        warm = self._seen_from(sequence.paging.window_known)
        for index in range(sequence.paging.window_unseen, last):
            if sequence.paging.window_pages[index] and not any(index in pages for pages in seen):
                self.pool.release(sequence.paging.window_pages[index], cold=index not in warm)
                sequence.paging.window_pages[index] = 0
        if not seen:
            sequence.paging.window_unseen = max(sequence.paging.window_unseen, last)

    def release(self, sequence: Sequence) -> None:
        """Release all, the first first: its prefix can be seen without it for the longest time."""
        for page in sequence.paging.window_pages:
            if page:
                self.pool.release(page)
        self.copied(sequence)
        sequence.paging.window_pages = []
        sequence.paging.window_unseen = 0

    def copied(self, sequence: Sequence) -> None:
        """Release the page that a sequence has copied, if there is one."""
        if sequence.paging.window_source:
            self.pool.release(sequence.paging.window_source)
            sequence.paging.window_source = 0

    def twin(self, page: int) -> int:
        """Return the window page with the same tokens; 0: there is none."""
        return self._twins.get(page, 0)

    def pair(self, page: int, window_page: int) -> None:
        """Keep a window page that is held as a twin, if there is none yet."""
        if window_page and page not in self._twins and window_page not in self._page:
            self.pool.keep(window_page)
            self._twins[page] = window_page
            self._page[window_page] = page

    def part(self, page: int) -> None:
        """Forget the twin of a page that is not kept any longer."""
        if window_page := self._twins.pop(page, 0):
            del self._page[window_page]
            self.pool.drop(window_page)

    def visible(self, found: Prefix) -> Prefix:
        """Return as much of a prefix as there are window pages for."""
        count = len(found.pages)
        while (missing := self._missing(found.pages, count)) is not None:
            count = missing
        first = self._first_seen(count * self._size)
        seen = tuple(self.twin(page) for page in found.pages[first:count])
        window_pages = (0,) * min(first, count) + seen
        known = found.tokens(self._size)
        if count == len(found.pages) and found.window_source:
            return found._replace(window_pages=window_pages, known=known)
        return Prefix(found.pages[:count], window_pages=window_pages, known=known)

    def _missing(self, pages: tuple[int, ...], count: int) -> int | None:
        """Return the last page without a twin that a query behind `count` pages sees."""
        for index in range(count - 1, self._first_seen(count * self._size) - 1, -1):
            if not self.twin(pages[index]):
                return index
        return None

    def _first_seen(self, position: int) -> int:
        return first_window_page_seen(self._limits, position)

    def _seen_from(self, position: int) -> range:
        """Return the indices of the pages before a position that a query there sees."""
        return range(self._first_seen(position), -(-position // self._size))

    def _share(self, pages: Iterable[int]) -> None:
        for page in pages:
            if page:
                self.pool.share(page)

    def _granted_anew(self, window_page: int) -> None:
        del self._twins[self._page.pop(window_page)]
