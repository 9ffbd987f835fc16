"""A step under construction: rows of sequences, and the pages and settings that they need. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from model_server.engine.encoding.encodes import Encodes
from model_server.engine.encoding.row_media import (
    media_of,
    next_media_of,
    uncut,
    whole_length,
)
from model_server.engine.paging.allocation import Allocation
from model_server.engine.paging.prefill import chunk_length
from model_server.engine.sequence import Sequence
from model_server.engine.types import PageGrant, Row, Sampling, SlotSampling, Step


class Draft:
    """Collects the rows of one step. Every row counts as launched at once."""

    __slots__ = (
        "_copies",
        "_grants",
        "_held",
        "_known",
        "_media",
        "_samplings",
        "blocks",
        "chunks",
        "extra",
        "guided",
        "logit_rows",
        "prompt_tokens",
        "rows",
    )

    def __init__(
        self, held: Allocation, known: list[Sampling | None], media: Encodes | None = None
    ) -> None:
        """known: how each slot samples, as the runner has it; changed here."""
        self.rows: list[Row] = []
        self.chunks: list[Sequence] = []  # whose prompts it computes in part
        self.prompt_tokens = 0
        self.guided = False  # a row's token is chosen under a mask
        self.logit_rows = held.limits.max_logit_rows  # still available
        self.blocks = 0  # prefill blocks still available: what decodes leave of the budget
        self.extra = 0  # further ones, for an image that must lie in one chunk
        self._media = media
        self._held = held
        self._known = known
        self._grants: list[PageGrant] = []
        self._samplings: list[SlotSampling] = []
        self._copies: list[tuple[int, ...]] = []

    def step(self, number: int) -> Step:
        rows, grants, samplings = tuple(self.rows), tuple(self._grants), tuple(self._samplings)
        return Step(number, rows, grants, samplings, self.guided, tuple(self._copies))

    def set_sampling(self, sequence: Sequence) -> None:
        """Tell the runner how the slot samples now, unless it samples like that already."""
        slot, sampling = sequence.slot, sequence.sampling
        if not sequence.generates:
            return
        if sampling.edits:
            tokens = tuple(sequence.tokens)
            if sequence.media:
                tokens = tuple(max(token, -1) for token in tokens)
            self._samplings.append(SlotSampling(slot, sampling, tokens, sequence.prompt))
        elif self._known[slot] != sampling:
            self._samplings.append(SlotSampling(slot, sampling))
        self._known[slot] = sampling

    def grant(self, sequence: Sequence, count: int, *, shared: bool = False) -> None:
        """Add pages to a sequence, and those that it shares to its slot's table."""
        first = 0 if shared else len(sequence.pages)
        sequence.pages += [self._held.pool.allocate() for _ in range(count)]
        if self._held.near is not None:
            self._held.near.cover(sequence)
        pages, near = tuple(sequence.pages[first:]), tuple(sequence.near[first:])
        self._grants.append(PageGrant(sequence.slot, first, pages, near))

    def reach(self, sequence: Sequence) -> None:
        """See that the next position of a sequence has a page."""
        start = sequence.launched
        if start >= len(sequence.pages) * self._held.limits.page_size:
            self.grant(sequence, 1, shared=start == sequence.reused)
            self._copy(sequence)

    def decode(self, sequence: Sequence) -> None:
        """Add a row for the next position, which has a page."""
        start, known = sequence.launched, sequence.stepwise
        if sequence.restate:
            known, sequence.restate = True, False
            self.set_sampling(sequence)  # it may have counted tokens that were dropped
        row = Row(
            sequence.id,
            sequence.slot,
            start,
            (),
            True,
            (),
            sequence.long,
            None,
            sequence.adapter,
            sequence.tokens[start] if known else -1,
            next_media_of(sequence) if sequence.shift else None,
        )
        self.rows.append(row)
        sequence.launched = start + 1
        sequence.in_flight += 1

    def guess(self, sequence: Sequence, guesses: tuple[int, ...]) -> None:
        """Add a row for each guess behind the sequence's own, which was just added."""
        page_size, own = self._held.limits.page_size, self.rows[-1]
        for start, token in enumerate(guesses, own.start + 1):
            if start == len(sequence.pages) * page_size:
                if self._held.pool.free <= len(self._held.running):
                    return  # others took pages since
                self.grant(sequence, 1)
            self.rows.append(replace(own, start=start, given=token))
            sequence.guesses += 1
            sequence.restate = True

    def reach_ahead(self, sequence: Sequence, count: int) -> None:
        """See that so many positions behind all of its rows have pages, as far as some are free."""
        pool, page_size = self._held.pool, self._held.limits.page_size
        end = min(sequence.launched + sequence.guesses + count, sequence.end)
        missing = -(-end // page_size) - len(sequence.pages)
        more = min(missing, pool.free - len(self._held.running))
        if more > 0:
            self.grant(sequence, more)

    def leave_blocks(self, forced: list[Row]) -> None:
        """Add rows of forced tokens to the decodes, and count what all leave to prompts."""
        limits, count = self._held.limits, len(self.rows)
        self.logit_rows -= count
        self.blocks = (limits.token_budget - count) // limits.prefill_block
        if limits.max_prefill_blocks is not None:
            self.blocks = min(self.blocks, limits.max_prefill_blocks)
        for row in forced:
            self.rows.append(row)
            self.logit_rows -= row.logit_rows
            self.blocks -= 1

    def keep_pace(self, blocks: int) -> None:
        """Leave this step so many blocks, at most; only whole images may take more."""
        self.extra = max(0, self.blocks - blocks)
        self.blocks = min(self.blocks, blocks)

    def chunk(self, sequence: Sequence, blocks: int, logit_rows: int) -> None:
        """Add the next chunk of a prefill, as far as these limits and the free pages allow."""
        start, limits = sequence.launched, self._held.limits
        end = start + self._length(sequence, blocks, logit_rows)
        if end == start:
            return
        self._begin(sequence, end)
        targets = _targets(sequence, end)
        tokens, media = tuple(sequence.tokens[start:end]), None
        if sequence.media and self._media is not None:
            tokens = self._media.tokens(sequence, start, end)
            media = media_of(sequence, start, end, self._media.limits)
        yields = sequence.generates and end == sequence.goal
        tops = sequence.score_tops if targets else None
        slot, long, adapter = sequence.slot, sequence.long, sequence.adapter
        row = Row(sequence.id, slot, start, tokens, yields, targets, long, tops, adapter, -1, media)
        self.rows.append(row)
        self.chunks.append(sequence)
        self._take_blocks(-(-len(tokens) // limits.prefill_block))
        self.logit_rows -= row.logit_rows
        self.prompt_tokens += len(tokens)
        self.guided |= yields and sequence.guide is not None
        sequence.launched = end
        sequence.in_flight += yields
        sequence.scores_launched += len(targets)

    def _length(self, sequence: Sequence, blocks: int, logit_rows: int) -> int:
        """Return the tokens of the next chunk, of images that must not be cut all or none."""
        limits, free = self._held.limits, self._held.pool.free
        if not sequence.media or self._media is None:
            return chunk_length(sequence, limits, free, blocks, logit_rows)
        start, media = sequence.launched, self._media.limits
        reach = self._media.reach(sequence) - start
        if media.bidirectional:
            whole = -(-whole_length(sequence, start) // limits.prefill_block)
            blocks = max(blocks, whole) if whole <= self.blocks + self.extra else blocks
        length = min(reach, chunk_length(sequence, limits, free, blocks, logit_rows))
        return uncut(sequence, start, length) if media.bidirectional else length

    def _take_blocks(self, count: int) -> None:
        self.extra -= max(0, count - self.blocks)
        self.blocks = max(0, self.blocks - count)

    def _begin(self, sequence: Sequence, end: int) -> None:
        """Set the slot of a prefill that begins, and grant the pages up to `end`."""
        begins = sequence.launched == sequence.reused
        if begins and not sequence.is_seat:
            for each in sequence.seats or (sequence,):
                self.set_sampling(each)
        missing = -(-end // self._held.limits.page_size) - len(sequence.pages)
        if missing > 0:
            self.grant(sequence, missing, shared=begins)
        self._copy(sequence)

    def _copy(self, sequence: Sequence) -> None:
        """Copy on write: the first page of its own may begin with tokens of another's."""
        if sequence.source:
            pair = sequence.source, sequence.pages[sequence.kept]
            if self._held.near is not None:
                pair += sequence.near_source, sequence.near[sequence.kept]
                self._held.near.copied(sequence)
            self._copies.append(pair)
            self._held.pool.release(sequence.source)
            sequence.source = 0


def _targets(sequence: Sequence, end: int) -> tuple[int, ...]:
    """Return the prompt's tokens that a chunk up to `end` scores.

    Where an answer follows, its tokens were chosen and need no score.
    """
    if end <= sequence.unscored:
        return ()
    scored = min(end + 1, sequence.prompt)
    return tuple(sequence.tokens[max(sequence.launched, sequence.unscored) + 1 : scored])
