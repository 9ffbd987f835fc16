"""Pages for the states behind draft tokens, in models whose layers keep a state. Pure.

Keys and values of a wrong draft token are overwritten; a state that has taken one in is lost. So
the state behind each draft token of a step goes to a page of its own. If the draft token was right,
that page takes the place of the sequence's page, and if it was wrong, the page is free again.
Either way the next row goes on from the page in the table.
"""

from __future__ import annotations

from msgspec.structs import replace

from model_server.engine.limits import EngineLimits
from model_server.engine.paging.pool import PagePool
from model_server.engine.part import EnginePart
from model_server.engine.sequence import Committing, Sequence
from model_server.engine.step_builder import StepBuilder
from model_server.engine.types import Row, RowResult


class DraftStates(EnginePart[dict[int, int]]):
    """Keeps, per sequence, the pages of the draft tokens that were tried last, by position."""

    def __init__(self) -> None:
        super().__init__()
        self._left: int | None = None  # draft tokens that the next step may try; None: as many
        self._moved: dict[int, int] = {}  # from which index on the table of a sequence is stale

    @classmethod
    def is_wanted(cls, limits: EngineLimits) -> bool:
        return limits.draft_states > 0

    def begin(self, sequence: Sequence) -> dict[int, int]:
        return {}

    def drafts(self, sequence: Sequence, tokens: tuple[int, ...]) -> tuple[int, ...]:
        left = self.limits.draft_states if self._left is None else self._left
        self._left = left - len(tokens[:left])
        return tokens[:left]

    def plan(self) -> bool:
        self._left = None  # the draft tokens were chosen before
        return True

    def scheduled(self, step: StepBuilder) -> None:
        """Give each draft token a page, with no step in flight; renew the tables."""
        for row in step.rows if self._moved else ():
            index, sequence = self._moved.pop(row.sequence, None), self.live.get(row.sequence)
            if index is not None and sequence is not None:
                step.renew(sequence, index)
        if not step.only_decodes:
            return
        self._release(*self.of.values())
        for place in range(1, len(step.rows)):
            row = step.rows[place]
            if row.sequence == step.rows[place - 1].sequence:
                page = self._pool.allocate()
                self.of[row.sequence][row.start] = page
                step.rows[place] = replace(row, state=page)

    def commit(
        self, sequence: Sequence, row: Row, outcome: RowResult, committing: Committing
    ) -> bool:
        """Keep the state behind a draft token that was right: nothing is told of wrong ones."""
        if row.state and self.of[sequence.id].pop(row.start, 0) == row.state:
            index, pages = row.start // self.limits.page_size, sequence.paging.window_pages
            self._pool.release(pages[index])
            pages[index] = row.state
            self._moved.setdefault(sequence.id, index)
        return False

    def released(self, sequence: Sequence) -> None:
        self._release(self.of[sequence.id])
        self._moved.pop(sequence.id, None)

    def _release(self, *tried: dict[int, int]) -> None:
        for each in tried:
            for page in each.values():
                self._pool.release(page)
            each.clear()

    @property
    def _pool(self) -> PagePool:
        pages = self.live.held.window_pages
        assert pages is not None, "layers with a state have pages of their own"
        return pages.pool
