"""Results of steps, applied to the sequences that had rows in them. Pure.

Rows of sequences that have ended since are surplus. A sequence may drop the tokens of rows in
flight (`redo`), when the last one that it was given cannot stand.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from model_server.engine.beams.seating import found
from model_server.engine.guessing.guessing import Guessing
from model_server.engine.live_sequences import LiveSequences
from model_server.engine.sequence import Finish, PromptChunk, Sequence, SequenceUpdate
from model_server.engine.types import Row, RowResult, Step, StepResult


class StepSpan(NamedTuple):
    """When the device computed a step, by `time.monotonic`: until it was read."""

    began_s: float
    read_s: float


UNTIMED = StepSpan(0.0, 0.0)


class Commits:
    """Turns the results of steps into updates."""

    def __init__(self, live: LiveSequences, guessing: Guessing | None) -> None:
        self.steps = 0  # committed
        self.tokens = 0  # generated
        self.finished = 0
        self._live = live
        self._guessing = guessing
        self._page_size = live.held.limits.page_size
        self._span = UNTIMED  # of the step that is being committed

    def commit(
        self, step: Step, result: StepResult, span: StepSpan = UNTIMED
    ) -> list[SequenceUpdate]:
        """Apply the results of a step. Steps must be committed in the order they were scheduled."""
        self.steps += 1
        self._span = span
        assert step.number == result.number == self.steps, "steps must commit in order"
        updates: list[SequenceUpdate] = []
        for row, outcome in zip(step.rows, result.rows, strict=True):
            sequence = self._live.get(row.sequence)
            if sequence is None:
                continue  # surplus: it ended or was cancelled while this step was in flight
            if sequence.guesses and not sequence.in_flight and not self._settle(sequence, row):
                continue
            if sequence.chunks is not None and row.tokens:
                sequence.chunks.append(PromptChunk(row.start, len(row.tokens), *span))
            if row.targets:
                updates += self._commit_targets(sequence, outcome, row)
                if sequence.id not in self._live:
                    continue
            if row.yields and sequence.seats is not None:
                updates += self._commit_beam(sequence, outcome)
            elif row.yields and (update := self._commit_token(sequence, outcome, row)):
                updates.append(update)
        return updates

    def _settle(self, sequence: Sequence, row: Row) -> bool:
        assert self._guessing is not None
        right = sequence.settle(row)
        self._guessing.settled(sequence.id, right)
        return right

    def _commit_token(
        self, sequence: Sequence, outcome: RowResult, row: Row
    ) -> SequenceUpdate | None:
        assert outcome.token is not None, "a yielding row must give a token"
        if sequence.dropped:
            sequence.dropped -= 1
            return _scores_alone(sequence, outcome, row)
        if not sequence.takes(outcome.token):
            sequence.in_flight -= 1
            self.redo(sequence)
            return _scores_alone(sequence, outcome, row)
        self.tokens += 1
        finish = sequence.append(outcome.token)
        if sequence.slot >= 0:
            self._live.held.note(sequence)
        if finish:
            self._finish(sequence)
        return self._update(sequence, outcome, finish)

    def _commit_beam(self, sequence: Sequence, outcome: RowResult) -> list[SequenceUpdate]:
        """Return the update with the answers once the search of this seat is over."""
        self.tokens += 1
        if sequence.slot >= 0:
            self._live.held.note(sequence)
        answers = self._live.seating.commit(sequence, outcome)
        if answers is None:
            return []
        assert sequence.seats is not None
        self._finish(sequence.seats[0])
        first = sequence.seats[0]
        update = found(first, answers)
        return [replace(update, read_s=self._span.read_s, started_s=first.started_s)]

    def redo(self, sequence: Sequence) -> None:
        """Have the next token chosen anew: those of all rows in flight are dropped."""
        sequence.dropped += sequence.in_flight
        sequence.ahead = ()
        sequence.in_flight = 0
        last = len(sequence.tokens) - 1
        if sequence.slot < 0:
            return  # it was preempted, and computes its last position again anyway
        if last < sequence.kept * self._page_size or self._live.held.limits.recurrent:
            # Others may read that page, or a state has taken in the token already.
            self._live.restart(sequence)
            return
        sequence.launched, sequence.restate = last, True
        sequence.goal = min(sequence.goal, last)

    def _commit_targets(
        self, sequence: Sequence, outcome: RowResult, row: Row
    ) -> list[SequenceUpdate]:
        """Return the updates for what a row scored: tokens of the prompt, or forced ones."""
        if row.start < sequence.prompt:
            update = self._commit_scores(sequence, outcome, row)
            return [update] if update else []
        self.tokens += len(row.targets)
        updates = [self._update(sequence, each) for each in _each(row, outcome)]
        if sequence.guide is not None and sequence.guide.finished:
            updates[-1] = replace(updates[-1], finish="complete")
            self._finish(sequence)
        return updates

    def _commit_scores(
        self, sequence: Sequence, outcome: RowResult, row: Row
    ) -> SequenceUpdate | None:
        """Return the update for a row's scores, if there is one for them alone.

        Those of a request that only scores, without `score_tops`, come with the last one.
        """
        assert sequence.score_from is not None
        sequence.scores_committed += len(row.targets)
        finish: Finish | None = None
        if not sequence.generates and (
            sequence.score_from + sequence.scores_committed == sequence.prompt
        ):
            self._finish(sequence)
            finish = "score"
        if sequence.generates or sequence.score_tops is not None:
            return None if row.yields else SequenceUpdate(sequence.id, outcome, finish)
        sequence.scores += outcome.target_logprobs
        if finish is None:
            return None
        scores = RowResult(target_logprobs=tuple(sequence.scores))
        return SequenceUpdate(sequence.id, scores, finish)

    def _update(
        self, sequence: Sequence, outcome: RowResult, finish: Finish | None = None
    ) -> SequenceUpdate:
        """Return the update for a token."""
        chunks: tuple[PromptChunk, ...] = ()
        if sequence.chunks:
            chunks, sequence.chunks = tuple(sequence.chunks), []
        return SequenceUpdate(
            sequence.id,
            outcome,
            finish,
            cached=max(sequence.cached, 0),
            read_s=self._span.read_s,
            started_s=sequence.started_s,
            chunks=chunks,
        )

    def _finish(self, sequence: Sequence) -> None:
        self.remove(sequence)
        self.finished += 1

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence that has ended or was cancelled, and the guesses for it."""
        for id in self._live.remove(sequence):
            if self._guessing is not None:
                self._guessing.forget(id)


def _scores_alone(sequence: Sequence, outcome: RowResult, row: Row) -> SequenceUpdate | None:
    """Return the update for the prompt's scores of a row whose token is not taken."""
    if not row.targets or row.start >= sequence.prompt:
        return None
    return SequenceUpdate(sequence.id, replace(outcome, token=None))


def _each(row: Row, outcome: RowResult) -> list[RowResult]:
    """Return the result of each forced token of a row but the first."""
    tops = outcome.target_tops or ((),) * len(row.targets)
    scored = zip(row.targets, outcome.target_logprobs, tops, strict=True)
    return [RowResult(token, logprob, top) for token, logprob, top in scored]
