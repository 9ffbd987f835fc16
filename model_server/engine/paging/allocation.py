"""Slots and pages: which sequences have them, who else fits, and where it begins. Pure.

What is shared takes no page, and what nobody holds counts as free (see `prefix_cache`).

Sequences with one salt that begin alike share pages: one that is admitted starts behind the tokens
that earlier steps have written for any of them, but computes its last token itself. A fork
therefore needs no call of its own: add a request whose tokens, `prompt` and `answer` together,
begin with those of another sequence, and cancel the other at any time, before or after. Samples are
n equal requests: those that come with the first wait one step for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from model_server.engine.limits import EngineLimits
from model_server.engine.paging.prefix import NOTHING, Prefix
from model_server.engine.paging.prefix_cache import PrefixCache
from model_server.engine.paging.window_pages import WindowPages
from model_server.engine.sequence import Sequence, redone
from model_server.engine.types import PageGrant


class Allocation:
    """Slots and pages of the running sequences."""

    def __init__(self, limits: EngineLimits) -> None:
        self.limits = limits
        self.running: list[Sequence] = []  # in order of admission
        self.window_pages = None if limits.windows.sliding is None else WindowPages(limits)
        whole = limits.windows.recurrent
        self.cache = PrefixCache(limits.pages, limits.page_size, self.window_pages, whole=whole)
        self.pool = self.cache.pool
        self.shares = limits.prefix_cache != "off"
        self.prefix_queries = 0  # tokens of admitted sequences
        self.prefix_hits = 0  # tokens of those that need not be computed
        self._page_size = limits.page_size
        self._slots = list(range(limits.slots - 1, -1, -1))  # free; the last one is taken next

    @property
    def slots_free(self) -> int:
        return len(self._slots)

    @property
    def window_pages_used(self) -> int:
        """Pages of the layers with a window, if they have their own."""
        return self.window_pages.pool.used if self.window_pages else 0

    # Before a sequence has a slot

    def fits(self, sequence: Sequence, without: Collection[Sequence] = ()) -> bool:
        """Check for slots and for the pages of the whole prefill, had `without` been preempted.

        Keeps the pages of the prompts under way, and one for each sequence that will need another,
        this one included, so that no admitted sequence is preempted for lack of pages within the
        next `page_size` steps. What it shares with others that stay takes no page.
        """
        without = [member for each in without for member in each.members]
        if len(self._slots) + len(without) < sequence.width:
            return False
        pool = self.pool
        freed = pool.only_held_by(each.pages for each in without) if without else ()
        wanted = pages_to_begin(sequence, self._page_size)
        wanted -= sum(
            pool.holders(page) > 0 and page not in freed for page in self._find(sequence).pages
        )
        wanted += self._lacking(other for other in self.running if other not in without)
        return pool.free + len(freed) >= wanted

    def should_wait(self, sequence: Sequence, others: Collection[Sequence]) -> bool:
        """Check, once, whether these are about to compute tokens that the sequence could reuse."""
        paging = sequence.paging
        if not self.shares or paging.deferred or not others:
            return False
        found = self._find(sequence)
        worth = self.limits.prefill_block + found.tokens(self._page_size)
        most = sequence.reusable
        paging.deferred = any(
            self.cache.alike(sequence, other, min(most, other.launched)) >= worth
            for other in others
        )
        return paging.deferred

    def take(self, sequence: Sequence) -> None:
        """Give a sequence that fits its slots, and let it begin behind what is known of it."""
        assert not sequence.in_flight, "a victim's last token must be committed first"
        found = self._find(sequence)
        for each in sequence.members:
            self.running.append(each)
            each.slot = self._slots.pop()
        for part in sequence.parts:
            part.prepare(sequence)
        sequence.goal = len(sequence.tokens) if sequence.generates else sequence.end
        if self.shares:
            self._reuse(sequence, found)

    def _find(self, sequence: Sequence) -> Prefix:
        if not self.shares or sequence.paging.computed:
            return NOTHING
        for part in sequence.parts:
            part.prepare(sequence)
        return self.cache.find(sequence, sequence.reusable)

    def _reuse(self, sequence: Sequence, found: Prefix) -> None:
        """Let a sequence begin behind the tokens that were found."""
        page_size, pool, paging = self._page_size, self.pool, sequence.paging
        for page in found.pages:
            pool.share(page)
        sequence.pages = list(found.pages)
        if self.window_pages is not None:
            self.window_pages.reuse(sequence, found)
        paging.kept = len(found.pages)
        sequence.launched = paging.written = paging.kept * page_size
        if found.source and self._may_copy(found.source):
            pool.share(found.source)
            paging.source = found.source
            if self.window_pages is not None:
                self.window_pages.copy(sequence, found.window_source)
            sequence.launched += found.copied
        paging.reused = sequence.launched
        if paging.computed and self.limits.windows.every is not None:
            # Where it was computed, pages before the window may hold other tokens by now.
            paging.kept = (len(sequence.tokens) - 1) // page_size
        self.cache.follow(sequence)
        if paging.cached < 0:
            paging.cached = min(paging.reused, sequence.prompt)
            if not paging.computed:
                self.prefix_queries += len(sequence.tokens)
                self.prefix_hits += paging.reused

    def _may_copy(self, source: int) -> bool:
        """Check that the page can be held until it is copied, beside all that is needed."""
        return bool(self.pool.holders(source)) or self.pool.free > self._lacking(self.running)

    def _lacking(self, sequences: Iterable[Sequence]) -> int:
        return sum(pages_lacking(each, self._page_size) for each in sequences)

    # While it has one

    def grant(self, sequence: Sequence, count: int, *, shared: bool = False) -> PageGrant:
        """Add pages to a sequence; shared: also tell its slot's table those that it shares."""
        first = 0 if shared else len(sequence.pages)
        sequence.pages += [self.pool.allocate() for _ in range(count)]
        if self.window_pages is not None:
            self.window_pages.cover(sequence)
        window_pages = tuple(sequence.paging.window_pages[first:])
        return PageGrant(sequence.slot, first, tuple(sequence.pages[first:]), window_pages)

    def copied(self, sequence: Sequence) -> tuple[int, ...]:
        """Return the copy that it begins with, as in `Step.copies`; (): none.

        The first page of its own may begin with tokens of another's.
        """
        paging = sequence.paging
        if not paging.source:
            return ()
        pair = paging.source, sequence.pages[paging.kept]
        if self.window_pages is not None:
            pair += paging.window_source, paging.window_pages[paging.kept]
            self.window_pages.copied(sequence)
        self.pool.release(paging.source)
        paging.source = 0
        return pair

    def note(self, sequence: Sequence) -> None:
        """Offer what launched steps have written. Call with all steps launched, or at the end of
        `schedule`: who finds it runs in a later step."""
        if self.shares:
            sequence.paging.written = min(sequence.launched, len(sequence.tokens))
            self.cache.note(sequence)

    def follow(self, sequence: Sequence, parent: Sequence, positions: int) -> None:
        """Let one that holds no pages go on behind the first positions of its parent."""
        full, rest = divmod(positions, self._page_size)
        held = parent.pages[: full + (rest > 0)]
        for page in held:
            if page:  # 0: before the window
                self.pool.share(page)
        sequence.pages = held[:full]
        paging = sequence.paging
        paging.source = held[full] if rest else 0
        if self.window_pages is not None:
            self.window_pages.follow(sequence, parent, full, rest)
        sequence.launched = paging.reused = positions
        paging.kept, paging.written = full, full * self._page_size
        paging.unseen = min(parent.paging.unseen, full)
        for part in sequence.parts:
            part.follow(sequence, parent)

    @property
    def frees_unseen(self) -> bool:
        return self.limits.windows.every is not None or self.window_pages is not None

    def free_unseen(self) -> None:
        """Free the pages that lie before the window of every later query.

        Later steps alone can be granted them. Their places in the page table keep their numbers,
        which no kernel follows: it begins at the first page that a query sees.
        """
        for sequence in self.running:
            if sequence.launched == sequence.paging.reused:
                continue  # launched nothing: the runner does not have its page table yet
            others = [each for part in sequence.parts for each in part.followed(sequence)]
            if self.window_pages is not None:
                self.window_pages.free_unseen(sequence, others)
            elif not others:
                self._free_unseen(sequence)

    def _free_unseen(self, sequence: Sequence) -> None:
        window = self.limits.windows.every
        assert window is not None
        paging = sequence.paging
        last = (sequence.launched + 1 - redone(sequence) - window) // self._page_size
        if self.shares:
            last = min(last, paging.kept)
        while paging.unseen < last:
            self.pool.release(sequence.pages[paging.unseen])
            sequence.pages[paging.unseen] = 0
            paging.unseen += 1

    def release(self, sequence: Sequence) -> None:
        """Free slot and pages."""
        self.running.remove(sequence)
        self._slots.append(sequence.slot)
        sequence.slot = -1
        sequence.stated = False
        self.release_pages(sequence)

    def release_pages(self, sequence: Sequence) -> None:
        """Free the pages of a sequence, which computes nothing from then on.

        The last one comes first: a page is of no use without those before it.
        """
        paging = sequence.paging
        self.cache.leave(sequence)
        for page in reversed(sequence.pages):
            if page:
                self.pool.release(page)
        if paging.source:
            self.pool.release(paging.source)
        if self.window_pages is not None:
            self.window_pages.release(sequence)
        sequence.pages = []
        sequence.launched = sequence.paging.reused = sequence.goal = 0
        paging.written = paging.kept = paging.unseen = paging.source = 0


def chunk_length(sequence: Sequence, limits: EngineLimits, free_pages: int, blocks: int) -> int:
    """Return whole blocks, unless the chunk ends the prefill."""
    start, block = sequence.launched, limits.prefill_block
    left = sequence.goal - start
    room = (len(sequence.pages) + free_pages) * limits.page_size - start
    length = max(0, min(left, room, blocks * block))
    if limits.windows.recurrent and start % block:
        return min(length, block - start % block)  # no block crosses the border of a page
    return length - length % block if length < left else length


def pages_to_begin(sequence: Sequence, page_size: int) -> int:
    """Return the pages of a waiting sequence's prefill, and one if it will go on beyond them.

    Those that take slots with it share the full pages of its prompt.
    """
    pages = -(-min(len(sequence.tokens), sequence.end) // page_size)
    pages += pages * page_size < sequence.end
    return pages + (sequence.width - 1) * (pages - sequence.prompt // page_size)


def pages_lacking(sequence: Sequence, page_size: int) -> int:
    """Return the pages that a running sequence lacks for its prefill, and one beyond them."""
    pages = len(sequence.pages)
    if sequence.launched >= sequence.goal:
        return pages * page_size < sequence.end
    prefill = -(-sequence.goal // page_size)
    return prefill - pages + (prefill * page_size < sequence.end)
