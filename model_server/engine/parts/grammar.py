"""Answers under a grammar: masks of tokens, tokens chosen anew, and those that are forced. Pure.

Before each token of such an answer its grammar says which ones may come next. A token of a row in
flight that cannot be the answer's next is dropped, with all rows behind it, and chosen anew.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from msgspec.structs import replace

from model_server.engine.limits import EngineLimits
from model_server.engine.live_sequences import LiveSequences
from model_server.engine.part import EnginePart
from model_server.engine.parts.thinking import BoundedState, ThinkingBudget, Thoughts
from model_server.engine.request import SequenceUpdate
from model_server.engine.sequence import Committing, Sequence
from model_server.engine.step_builder import StepBuilder
from model_server.engine.step_times import StepTimes
from model_server.engine.types import (
    BAD_WORDS,
    COUNTS,
    GrammarState,
    Row,
    RowResult,
    SlotMask,
    Step,
)
from sax.errors import SaxError

_REDONE = 2  # positions, at most, that are computed again
_FEWEST = 2
_COUNTED = COUNTS | BAD_WORDS  # edits by the tokens that a slot has chosen


@dataclass
class _GuidedAnswer:
    """Kept across preemptions, because results in flight stay valid."""

    state: GrammarState
    # Forced tokens of a row in flight, behind the one that the row before it chooses.
    ahead: tuple[int, ...] = ()
    dropped: int = 0  # rows launched before those whose token will not be taken
    unmasked: int = sys.maxsize  # first position of a draft token without a mask behind it


class Grammars(EnginePart[_GuidedAnswer]):
    """Follows the answers that must keep to a grammar."""

    def join(self, live: LiveSequences, times: StepTimes | None) -> None:
        super().join(live, times)
        self._forced = ForcedRows(live.limits, times)

    def begin(self, sequence: Sequence) -> _GuidedAnswer | None:
        request = sequence.request
        if request.grammar is None:
            return None
        # Words that may not follow each other can close every way to an end.
        left = None if request.sampling.bad_words else sequence.finish_at - len(sequence.tokens)
        state = request.grammar.begin(request.answer, request.sampling.allowed, left)
        budget = request.setting(ThinkingBudget)
        if budget is not None:
            state = BoundedState(state, Thoughts(budget, request.answer))
        return _GuidedAnswer(state)

    def waits(self, sequence: Sequence, *, late: bool) -> bool:
        return not late and self.of[sequence.id].state.late

    def is_stepwise(self, sequence: Sequence) -> bool:
        return True

    def redone(self, sequence: Sequence) -> int:
        return _REDONE

    def before_rows(self, step: StepBuilder, *, late: bool) -> None:
        if self.of:
            self._forced.begin(step, len(self.live.running))

    def row(self, sequence: Sequence) -> Row | None:
        answer = self.of[sequence.id]
        row = self._forced.row(sequence, answer.state)
        if row is not None:
            answer.ahead = row.targets
        return row

    def coming(self, sequence: Sequence) -> tuple[int, ...]:
        tokens = self.of[sequence.id].state.coming()
        if sequence.in_flight and self._forced.takes(sequence, tokens):
            return tokens[:1]
        return tokens

    def drafts(self, sequence: Sequence, tokens: tuple[int, ...]) -> tuple[int, ...]:
        return tokens[: self.of[sequence.id].state.draft(tokens)] if tokens else ()

    def masks(self, step: Step) -> tuple[list[SlotMask], list[SequenceUpdate]]:
        masks: list[SlotMask] = []
        failed: list[SequenceUpdate] = []
        for place, row in enumerate(step.rows):
            first = _first_row(step, place)
            if first < place:
                self._mask_draft(row, place, place - first, masks)
                continue
            sequence, answer = self.live.get(row.sequence), self.of.get(row.sequence)
            if sequence is None or answer is None or not row.yields:
                continue
            answer.unmasked = sys.maxsize
            if answer.state.finished:
                continue  # by forced tokens: whatever is chosen after them is dropped
            try:
                if mask := answer.state.mask():
                    masks.append(SlotMask(row.slot, mask))
                else:
                    self._redo(sequence, answer)
            except SaxError as error:
                failed.append(SequenceUpdate(sequence.id, RowResult(), error=error))
        return masks, failed

    def _mask_draft(self, row: Row, place: int, count: int, masks: list[SlotMask]) -> None:
        """Add the mask behind a sequence's draft token of a step, `count` from 1 on."""
        answer = self.of.get(row.sequence)
        if answer is None or answer.state.finished:
            return
        if mask := answer.state.drafted(count):
            masks.append(SlotMask(self.limits.slots + 1 + place, mask))
        else:
            answer.unmasked = min(answer.unmasked, row.start)

    def commit(
        self, sequence: Sequence, row: Row, outcome: RowResult, committing: Committing
    ) -> bool:
        answer = self.of[sequence.id]
        if row.targets and row.start >= sequence.prompt:
            self._take_forced(sequence, answer, row, outcome, committing)
            if answer.state.finished:
                return True
        if not row.yields:
            return False
        assert outcome.token is not None, "a yielding row must give a token"
        if answer.dropped:
            answer.dropped -= 1
        elif row.start >= answer.unmasked or not self._fits(sequence, answer, outcome.token):
            sequence.in_flight -= 1
            self._redo(sequence, answer)
        else:
            self._take(sequence, answer, outcome, committing)
            return True
        if row.targets and row.start < sequence.prompt:
            committing.tell(SequenceUpdate(sequence.id, replace(outcome, token=None)))
        return True

    def _fits(self, sequence: Sequence, answer: _GuidedAnswer, token: int) -> bool:
        """Return False for a token of a row in flight that cannot be the answer's next."""
        return token in sequence.request.stop_ids or answer.state.fits(token)

    def _take(
        self, sequence: Sequence, answer: _GuidedAnswer, outcome: RowResult, committing: Committing
    ) -> None:
        """Take in the token that was chosen, and the forced ones of the row behind it."""
        assert outcome.token is not None
        finish = sequence.append(outcome.token)
        if finish != "stop":
            answer.state.accept(outcome.token)
            if answer.state.finished:
                finish = "complete"
            else:
                for token in answer.ahead:
                    sequence.tokens.append(token)
                    answer.state.accept(token)
                answer.ahead = ()
                finish = "length" if len(sequence.tokens) == sequence.finish_at else None
        committing.token(sequence, outcome, finish)

    def _take_forced(
        self,
        sequence: Sequence,
        answer: _GuidedAnswer,
        row: Row,
        outcome: RowResult,
        committing: Committing,
    ) -> None:
        """Tell the forced tokens of a row, which were taken in before; the last may end it."""
        tops = outcome.target_tops or ((),) * len(row.targets)
        scored = zip(row.targets, outcome.target_logprobs, tops, strict=True)
        results = [RowResult(token, logprob, top) for token, logprob, top in scored]
        for each in results[:-1]:
            committing.token(sequence, each)
        committing.token(sequence, results[-1], "complete" if answer.state.finished else None)

    def _redo(self, sequence: Sequence, answer: _GuidedAnswer) -> None:
        """Have the next token chosen anew: those of all rows in flight are dropped."""
        answer.dropped += sequence.in_flight
        answer.ahead = ()
        sequence.in_flight = 0
        last = len(sequence.tokens) - 1
        if sequence.slot < 0:
            return  # it was preempted, and computes its last position again anyway
        if last < sequence.paging.kept * self.limits.page_size or self.limits.windows.recurrent:
            # Others may read that page, or a state has taken in the token already.
            self.live.restart(sequence)
            return
        sequence.launched, sequence.stated = last, True
        sequence.goal = min(sequence.goal, last)


def _first_row(step: Step, place: int) -> int:
    """Return the place of the row behind which a row tries draft tokens, or its own."""
    rows = step.rows
    while place and rows[place - 1].sequence == rows[place].sequence:
        place -= 1
    return place


class ForcedRows:
    """Decides which tokens that a grammar forces are computed together, in one row.

    Where only one token may come next, and after it only one, the tokens are known before they are
    chosen: they make one row like a prompt's chunk instead of a step each. The row before it, still
    in flight, chooses the first of them; the others are scored by the row itself.

    A row of several tokens takes a prompt block, which makes its step longer. It is worth that if
    the decodes that it saves would have taken longer, each of them its share of a step.
    """

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
