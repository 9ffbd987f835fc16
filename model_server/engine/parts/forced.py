"""Decides which tokens that a grammar forces are computed together, in one row. Pure.

Where only one token may come next, and after it only one, the tokens are known before they are
chosen: they make one row like a prompt's chunk instead of a step each. The row before it, still in
flight, chooses the first of them; the others are scored by the row itself.

A row of several tokens takes a prompt block, which makes its step longer. It is worth that if the
decodes that it saves would have taken longer, each of them its share of a step.
"""

from __future__ import annotations

import math

from model_server.engine.limits import EngineLimits
from model_server.engine.sequence import Sequence
from model_server.engine.steps.builder import StepBuilder
from model_server.engine.timing.step_times import StepTimes
from model_server.engine.types import (
    BAD_WORDS,
    COUNTS,
    GrammarState,
    Row,
)

_FEWEST = 2
_COUNTED = COUNTS | BAD_WORDS  # edits by the tokens that a slot has chosen


class ForcedRows:
    """Makes the rows of forced tokens of one step after another."""

    def __init__(self, limits: EngineLimits, times: StepTimes | None) -> None:
        """times: of the runner's steps; None: every such row is worth its block."""
        self._limits = limits
        self._times = times
        self._least: dict[int, int] = {}  # tokens that are worth a block, by running sequences
        self._fewest = _FEWEST
        self._logit_rows = 0  # that this step's other rows leave
        self._blocks = 0

    def begin(self, step: StepBuilder, running: int) -> None:
        """Begin with the decodes of a step with so many running sequences."""
        limits = self._limits
        self._logit_rows = limits.max_logit_rows - running
        self._blocks = (limits.token_budget - running) // limits.prefill_block
        if limits.max_prefill_blocks is not None:
            self._blocks = min(self._blocks, limits.max_prefill_blocks)
        self._blocks = 0 if step.only_decodes else max(0, self._blocks - step.reserved)
        self._fewest = self._worth(running)

    def row(self, sequence: Sequence, state: GrammarState) -> Row | None:
        """Return a row of the tokens that a grammar forces next, if enough fit into one.

        It begins at `sequence.launched`, whose page has been granted.
        """
        if not self._may_begin(sequence):
            return None
        forced = state.forced()
        count = self._count(sequence, forced)
        if count < self._fewest:
            return None
        self._logit_rows -= count - 1
        self._blocks -= 1
        long, adapter, media = sequence.columns
        tokens, tops = forced[:count], sequence.request.sampling.logprobs or None
        id, slot, start = sequence.id, sequence.slot, sequence.launched
        return Row(id, slot, start, tokens, True, tokens[1:], long, tops, adapter, -1, media)

    def takes(self, sequence: Sequence, forced: tuple[int, ...]) -> bool:
        """Return True if a row will compute these behind the token in flight, the first of them."""
        if self._limits.max_prefill_blocks == 0 or sequence.request.sampling.edits & _COUNTED:
            return False
        return min(len(forced), self._limits.prefill_block) >= self._fewest

    def _may_begin(self, sequence: Sequence) -> bool:
        edits = sequence.request.sampling.edits
        at_end = sequence.launched == len(sequence.tokens)
        return bool(self._blocks) and at_end and not edits & _COUNTED

    def _count(self, sequence: Sequence, forced: tuple[int, ...]) -> int:
        """Return how many forced tokens one row may compute."""
        start, limits, stop_ids = sequence.launched, self._limits, sequence.request.stop_ids
        places = [len(forced), limits.prefill_block, self._logit_rows + 1]
        places += [len(sequence.pages) * limits.page_size - start, sequence.limit - start]
        places += [place for place, each in enumerate(forced) if each in stop_ids][:1]
        return min(places)

    def _worth(self, running: int) -> int:
        if self._times is None:
            return _FEWEST
        if running not in self._least:
            decodes_s = self._times.of(running, 0)
            extra_s = self._times.of(running, 1) - decodes_s
            saved = math.ceil(running * extra_s / decodes_s) if decodes_s else 0
            self._least[running] = max(_FEWEST, 1 + saved)
        return self._least[running]
