"""Decides which tokens that a guide forces are computed together, in one row. Pure.

Where only one token may come next, and after it only one, the tokens are known before they are
chosen: they make one row like a prompt's chunk instead of a step each. The row before it, still in
flight, chooses the first of them; the others are scored by the row itself.

A row of several tokens takes a prompt block, which makes its step longer. It is worth that if the
decodes that it saves would have taken longer, each of them its share of a step.
"""

from __future__ import annotations

import math

from model_server.engine.media.media_span import RowMedia
from model_server.engine.sequence import Sequence
from model_server.engine.timing.step_times import StepTimes
from model_server.engine.types import BAD_WORDS, COUNTS, EngineLimits, Row

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
        self.rows: list[Row] = []  # of this step

    def begin(self, running: int, *, beside_guesses: bool = False, reserved: int = 0) -> None:
        """Begin a step beside so many sequences; one that tries guesses has no prompt block.

        reserved: blocks that a prompt needs all at once.
        """
        limits = self._limits
        self.rows = []
        self._logit_rows = limits.max_logit_rows - running
        self._blocks = (limits.token_budget - running) // limits.prefill_block
        if limits.max_prefill_blocks is not None:
            self._blocks = min(self._blocks, limits.max_prefill_blocks)
        self._blocks = 0 if beside_guesses else max(0, self._blocks - reserved)
        self._fewest = self._worth(running)

    def take(self, sequence: Sequence) -> bool:
        """Add a row of the sequence's forced tokens, if there are enough; else return False.

        It begins at `sequence.launched`, whose page has been granted.
        """
        count = self._count(sequence)
        if count < self._fewest:
            return False
        assert sequence.guide is not None, "only guides force tokens"
        start, tokens = sequence.launched, sequence.guide.forced()[:count]
        tops = sequence.sampling.logprobs or None
        slot, long, adapter = sequence.slot, sequence.long, sequence.adapter
        media = RowMedia(sequence.shift) if sequence.shift else None
        scored = tokens[1:]
        row = Row(sequence.id, slot, start, tokens, True, scored, long, tops, adapter, -1, media)
        self.rows.append(row)
        self._logit_rows -= count - 1
        self._blocks -= 1
        sequence.ahead = tokens[1:]
        sequence.launched = start + count
        sequence.in_flight += 1
        return True

    def _count(self, sequence: Sequence) -> int:
        """Return how many forced tokens one row may compute."""
        start = sequence.launched
        if (
            sequence.guide is None
            or sequence.stepwise
            or start != len(sequence.tokens)
            or not self._blocks
            or sequence.sampling.edits & _COUNTED
        ):
            return 0
        forced = sequence.guide.forced()
        places = [len(forced), self._limits.prefill_block, self._logit_rows + 1]
        places += [len(sequence.pages) * self._limits.page_size - start, sequence.end - start]
        if sequence.recompute_at >= start:
            places.append(sequence.recompute_at - start)
        places += [place for place, each in enumerate(forced) if each in sequence.stop_ids][:1]
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
