"""Results of steps, applied to the sequences that had rows in them. Pure.

Rows of sequences that have ended since are surplus.
"""

from __future__ import annotations

from model_server.engine.live_sequences import LiveSequences
from model_server.engine.request import UNTIMED, Finish, SequenceUpdate, StepSpan
from model_server.engine.sequence import Sequence
from model_server.engine.types import Row, RowResult, Step, StepResult


class Commits:
    """Turns the results of steps into updates; parts see it as `Committing`."""

    def __init__(self, live: LiveSequences) -> None:
        self.tokens = 0  # generated
        self.finished = 0
        self.span = UNTIMED  # of the step that is being committed
        self._live = live
        self._updates: list[SequenceUpdate] = []

    def commit(
        self, step: Step, result: StepResult, span: StepSpan = UNTIMED
    ) -> list[SequenceUpdate]:
        """Apply the results of a step. Steps must be committed in the order they were scheduled."""
        live = self._live
        live.committed += 1
        self.span = span
        assert step.number == result.number == live.committed, "steps must commit in order"
        self._updates = []
        for row, outcome in zip(step.rows, result.rows, strict=True):
            sequence = live.get(row.sequence)
            if sequence is None:
                continue  # surplus: it ended or was cancelled while this step was in flight
            if sequence.parts and self._parts_take(sequence, row, outcome):
                continue
            if row.yields:
                assert outcome.token is not None, "a yielding row must give a token"
                self.token(sequence, outcome, sequence.append(outcome.token))
        return self._updates

    def token(self, sequence: Sequence, outcome: RowResult, finish: Finish | None = None) -> None:
        """Count and tell a token that the sequence took in, and end it with a `finish`."""
        self.tokens += 1
        if sequence.slot >= 0:
            self._live.held.note(sequence)
        update = SequenceUpdate(
            sequence.id,
            outcome,
            finish,
            cached=max(sequence.paging.cached, 0),
            read_s=self.span.read_s,
            started_s=sequence.started_s,
        )
        for part in sequence.parts:
            update = part.tell(sequence, update)
        if finish:
            self.finish(sequence)
        self._updates.append(update)

    def tell(self, update: SequenceUpdate) -> None:
        self._updates.append(update)

    def finish(self, sequence: Sequence) -> None:
        """Forget a sequence that has ended, with its group."""
        self._live.remove(sequence)
        self.finished += 1

    def _parts_take(self, sequence: Sequence, row: Row, outcome: RowResult) -> bool:
        return any(part.commit(sequence, row, outcome, self) for part in sequence.parts)
