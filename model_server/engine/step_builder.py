"""A step under construction: rows of sequences, and the pages and settings that they need. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from model_server.engine.paging.allocation import Allocation, chunk_length
from model_server.engine.sequence import Sequence
from model_server.engine.types import PageGrant, Row, Sampling, SlotSampling, Step


class StepBuilder:
    """Collects the rows of one step. Every row counts as launched at once."""

    __slots__ = (
        "_copies",
        "_grants",
        "_held",
        "_known",
        "_page_size",
        "_samplings",
        "behind",
        "blocks",
        "chunks",
        "guided",
        "logit_rows",
        "only_decodes",
        "prompt_tokens",
        "reserved",
        "rows",
        "spare",
    )

    def __init__(self, held: Allocation, known: list[Sampling | None]) -> None:
        """known: how each slot samples, as the runner has it; changed here."""
        self.rows: list[Row] = []
        self.behind: list[Row] = []  # rows of several known tokens, which go behind the decodes
        self.chunks: list[Sequence] = []  # whose prompts it computes in part
        self.prompt_tokens = 0
        self.only_decodes = False  # no row takes a prefill block
        self.guided = False  # a row's token is chosen under a mask
        self.logit_rows = held.limits.max_logit_rows  # still available
        self.blocks = 0  # prefill blocks still available: what decodes leave of the budget
        self.spare = 0  # further ones, for a chunk that must not be cut
        self.reserved = 0  # blocks that such a chunk needs, which rows of known tokens leave to it
        self._held = held
        self._page_size = held.limits.page_size
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
            if min(tokens, default=0) < 0:
                tokens = tuple(max(token, -1) for token in tokens)
            self._samplings.append(SlotSampling(slot, sampling, tokens, sequence.prompt))
        elif self._known[slot] != sampling:
            self._samplings.append(SlotSampling(slot, sampling))
        self._known[slot] = sampling

    def grant(self, sequence: Sequence, count: int, *, shared: bool = False) -> None:
        """Add pages to a sequence, and those that it shares to its slot's table."""
        self._grants.append(self._held.grant(sequence, count, shared=shared))

    def renew(self, sequence: Sequence, index: int) -> None:
        """Tell its slot's table which pages a sequence has from an index on, new ones included."""
        pages, window_pages = sequence.pages[index:], sequence.paging.window_pages[index:]
        self._grants = [each for each in self._grants if each.slot != sequence.slot]
        self._grants.append(PageGrant(sequence.slot, index, tuple(pages), tuple(window_pages)))

    def reach(self, sequence: Sequence) -> None:
        """See that the next position of a sequence has a page."""
        start = sequence.launched
        if start >= len(sequence.pages) * self._page_size:
            self.grant(sequence, 1, shared=start == sequence.paging.reused)
            self._copy(sequence)

    def decode(self, sequence: Sequence) -> None:
        """Add a row for the next position, which has a page."""
        start, known = sequence.launched, sequence.group is not None
        if sequence.stated:
            known, sequence.stated = True, False
            self.set_sampling(sequence)  # it may have counted tokens that were dropped
        long, adapter, media = sequence.columns
        given = sequence.tokens[start] if known else -1
        id, slot = sequence.id, sequence.slot
        row = Row(id, slot, start, (), True, (), long, None, adapter, given, media)
        self.rows.append(row)
        sequence.launched = start + 1
        sequence.in_flight += 1

    def leave_blocks(self) -> None:
        """Put rows of known tokens behind the decodes, and count what all leave to prompts."""
        limits, count = self._held.limits, len(self.rows)
        self.logit_rows -= count
        self.blocks = (limits.token_budget - count) // limits.prefill_block
        if limits.max_prefill_blocks is not None:
            self.blocks = min(self.blocks, limits.max_prefill_blocks)
        for row in self.behind:
            self.rows.append(row)
            self.logit_rows -= row.logit_rows
            self.blocks -= 1
        self.behind = []

    def keep_pace(self, blocks: int) -> None:
        """Leave this step so many blocks, at most; only chunks that are not cut may take more."""
        self.spare = max(0, self.blocks - blocks)
        self.blocks = min(self.blocks, blocks)

    def chunk(self, sequence: Sequence, blocks: int, logit_rows: int) -> None:
        """Add the next chunk of a prefill, as far as these limits and the free pages allow."""
        start = sequence.launched
        end = start + self._length(sequence, blocks, logit_rows)
        if end == start:
            return
        self._begin(sequence, end)
        row = self._chunk_row(sequence, start, end)
        self.rows.append(row)
        self.chunks.append(sequence)
        self._take_blocks(-(-row.count // self._held.limits.prefill_block))
        self.logit_rows -= row.logit_rows
        self.prompt_tokens += row.count
        self.guided |= row.yields and sequence.request.sampling.guided
        sequence.launched = end
        sequence.in_flight += row.yields

    def _chunk_row(self, sequence: Sequence, start: int, end: int) -> Row:
        tokens, yields = tuple(sequence.tokens[start:end]), end == sequence.goal
        row = Row(
            sequence.id,
            sequence.slot,
            start,
            tokens,
            yields and sequence.generates,
            long=sequence.columns.long,
            adapter=sequence.columns.adapter,
        )
        for part in sequence.parts:
            row = part.fill(sequence, row)
        return row

    def _length(self, sequence: Sequence, blocks: int, logit_rows: int) -> int:
        for part in sequence.parts:
            blocks = part.chunk_blocks(sequence, blocks, self.blocks + self.spare)
        length = chunk_length(sequence, self._held.limits, self._held.pool.free, blocks)
        for part in sequence.parts:
            length = part.chunk_length(sequence, length, logit_rows)
        return length

    def _take_blocks(self, count: int) -> None:
        self.spare -= max(0, count - self.blocks)
        self.blocks = max(0, self.blocks - count)

    def _begin(self, sequence: Sequence, end: int) -> None:
        """Set the slot of a prefill that begins, and grant the pages up to `end`."""
        begins = sequence.launched == sequence.paging.reused
        if begins and not sequence.is_follower:
            for each in sequence.members:
                self.set_sampling(each)
        missing = -(-end // self._page_size) - len(sequence.pages)
        if missing > 0:
            self.grant(sequence, missing, shared=begins)
        self._copy(sequence)

    def _copy(self, sequence: Sequence) -> None:
        if copied := self._held.copied(sequence):
            self._copies.append(copied)

    def repeat(self, start: int, token: int) -> None:
        """Add the last row once more, for a later position with a token that is given."""
        self.rows.append(replace(self.rows[-1], start=start, given=token))
