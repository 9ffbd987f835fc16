"""Slots and pages: which sequences have them, who else fits, and where it begins. Pure.

What is shared takes no page, and what nobody holds counts as free (see `prefix_cache`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from collections.abc import Sequence as Positions

from model_server.engine.encoding.encodes import Encodes
from model_server.engine.paging.near_pages import NearPages
from model_server.engine.paging.parting import partings
from model_server.engine.paging.prefill import pages_lacking, pages_to_begin
from model_server.engine.paging.prefix import NOTHING, Prefix
from model_server.engine.paging.prefix_cache import PrefixCache
from model_server.engine.sequence import Sequence
from model_server.engine.types import EngineLimits


class Allocation:
    """Slots and pages of the running sequences."""

    def __init__(self, limits: EngineLimits) -> None:
        self.limits = limits
        self.running: list[Sequence] = []  # in order of admission
        self.near = None if limits.near_window is None else NearPages(limits)
        self.media = None if limits.media is None else Encodes(limits.media)
        whole = limits.recurrent
        self.cache = PrefixCache(limits.pages, limits.page_size, self.near, whole=whole)
        self.pool = self.cache.pool
        self.shares = limits.prefix_cache != "off"
        self.prefix_queries = 0  # tokens of admitted sequences
        self.prefix_hits = 0  # tokens of those that need not be computed
        self._slots = list(range(limits.slots - 1, -1, -1))  # free; the last one is taken next

    @property
    def slots_free(self) -> int:
        return len(self._slots)

    def fits(self, sequence: Sequence, without: Collection[Sequence] = ()) -> bool:
        """Check for slots and for the pages of the whole prefill, had `without` been preempted.

        Keeps the pages of the prompts under way, and one for each sequence that will need another,
        this one included, so that no admitted sequence is preempted for lack of pages within the
        next `page_size` steps. What it shares with others that stay takes no page.
        """
        without = [seat for each in without for seat in each.seats or (each,)]
        if len(self._slots) + len(without) < sequence.width:
            return False
        pool = self.pool
        freed = pool.only_held_by(each.pages for each in without) if without else ()
        wanted = pages_to_begin(sequence, self.limits.page_size)
        wanted -= sum(
            pool.holders(page) > 0 and page not in freed for page in self._find(sequence).pages
        )
        wanted += self._lacking(other for other in self.running if other not in without)
        return pool.free + len(freed) >= wanted

    def should_wait(self, sequence: Sequence, others: Collection[Sequence]) -> bool:
        """Check, once, whether these are about to compute tokens that the sequence could reuse."""
        if not self.shares or sequence.deferred or not others:
            return False
        found = self._find(sequence)
        worth = self.limits.prefill_block + found.tokens(self.limits.page_size)
        most = sequence.reusable
        sequence.deferred = any(
            self.cache.alike(sequence, other, min(most, other.launched)) >= worth
            for other in others
        )
        return sequence.deferred

    def take(self, sequence: Sequence) -> None:
        """Give a sequence that fits its slots, and let it begin behind what is known of it."""
        assert not sequence.in_flight, "a victim's last token must be committed first"
        found = self._find(sequence)
        for each in sequence.seats or (sequence,):
            self.running.append(each)
            each.slot = self._slots.pop()
        positions = len(sequence.tokens) - sequence.computed
        sequence.rotate(self.limits.short_context, positions)
        sequence.goal = len(sequence.tokens) if sequence.generates else sequence.end
        if self.shares:
            self._reuse(sequence, found)

    def release(self, sequence: Sequence) -> None:
        """Free slot and pages."""
        self.running.remove(sequence)
        if self.media is not None:
            self.media.release(sequence)
        self._slots.append(sequence.slot)
        sequence.slot = -1
        sequence.restate = False
        self.vacate(sequence)

    def vacate(self, sequence: Sequence) -> None:
        """Release the pages of a sequence, which computes nothing from then on."""
        self.cache.release(sequence)
        if sequence.source:
            self.pool.release(sequence.source)
        if self.near is not None:
            self.near.vacate(sequence)
        sequence.pages = []
        sequence.launched = sequence.reused = sequence.written = sequence.kept = 0
        sequence.unseen = sequence.source = sequence.goal = 0

    def note(self, sequence: Sequence) -> None:
        """Offer what launched steps have written. Call with all steps launched, or at the end of
        `schedule`: who finds it runs in a later step."""
        if self.shares:
            sequence.written = min(sequence.launched, len(sequence.tokens))
            self.cache.note(sequence)

    @property
    def frees_unseen(self) -> bool:
        return self.limits.window is not None or self.near is not None

    def free_unseen(self, followed: Callable[[Sequence], Positions[int]]) -> None:
        """Free the pages that lie before the window of every later query.

        Later steps alone can be granted them. Their places in the page table keep their numbers,
        which no kernel follows: it begins at the first page that a query sees. followed: positions
        of a sequence behind which others will begin with its pages.
        """
        for sequence in self.running:
            if sequence.launched == sequence.reused:
                continue  # launched nothing: the runner does not have its page table yet
            others = followed(sequence)
            if self.near is not None:
                self.near.free_unseen(sequence, others)
            elif not others:
                self._free_unseen(sequence)

    def _free_unseen(self, sequence: Sequence) -> None:
        assert self.limits.window is not None
        back = 0 if sequence.guide is None else 2  # positions, at most, that are done again
        unseen = sequence.launched + 1 - back - self.limits.window
        last = unseen // self.limits.page_size
        if self.shares:
            last = min(last, sequence.kept)
        while sequence.unseen < last:
            self.pool.release(sequence.pages[sequence.unseen])
            sequence.pages[sequence.unseen] = 0
            sequence.unseen += 1

    def _find(self, sequence: Sequence) -> Prefix:
        if not self.shares or sequence.computed:
            return NOTHING
        sequence.rotate(self.limits.short_context, len(sequence.tokens))
        most = sequence.reusable
        if self.near is not None and sequence.seats is not None:
            # Each begins with what the first one holds at the place where they part.
            most = min([most, *partings(sequence.seats)])
        return self.cache.find(sequence, most)

    def _reuse(self, sequence: Sequence, found: Prefix) -> None:
        """Let a sequence begin behind the tokens that were found."""
        page_size, pool = self.limits.page_size, self.pool
        for page in found.pages:
            pool.share(page)
        sequence.pages = list(found.pages)
        if self.near is not None:
            self.near.reuse(sequence, found)
        sequence.kept = len(found.pages)
        sequence.launched = sequence.written = sequence.kept * page_size
        if found.source and self._may_copy(found.source):
            pool.share(found.source)
            sequence.source = found.source
            if self.near is not None:
                self.near.copy(sequence, found.near_source)
            sequence.launched += found.copied
        sequence.reused = sequence.launched
        if sequence.computed and self.limits.window is not None:
            # Where it was computed, pages before the window may hold other tokens by now.
            sequence.kept = (len(sequence.tokens) - 1) // page_size
        self.cache.follow(sequence)
        if sequence.cached < 0:
            sequence.cached = min(sequence.reused, sequence.prompt)
            if not sequence.computed:
                self.prefix_queries += len(sequence.tokens)
                self.prefix_hits += sequence.reused

    def _may_copy(self, source: int) -> bool:
        """Check that the page can be held until it is copied, beside all that is needed."""
        return bool(self.pool.holders(source)) or self.pool.free > self._lacking(self.running)

    def _lacking(self, sequences: Iterable[Sequence]) -> int:
        return sum(pages_lacking(each, self.limits.page_size) for each in sequences)
