"""Sequences that have not ended: whose turn it is, what each holds, and how it gives that back.
Pure.
"""

from __future__ import annotations

from model_server.engine.accounts import Accounts
from model_server.engine.beams.seating import Seating
from model_server.engine.paging.allocation import Allocation
from model_server.engine.sequence import Begun, Sequence
from model_server.engine.types import EngineLimits


class LiveSequences:
    """All live sequences of a scheduler; hypotheses of a beam search count one by one."""

    def __init__(self, limits: EngineLimits) -> None:
        self.steps = 0  # scheduled
        self.now_s = 0.0  # when the next one is scheduled
        self.held = Allocation(limits)
        self.accounts = Accounts(limits.max_running_per_account)
        self.seating = Seating(self.held, self.accounts)
        self._sequences: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, id: int) -> bool:
        return id in self._sequences

    @property
    def ids(self) -> list[int]:
        return list(self._sequences)

    def get(self, id: int) -> Sequence | None:
        return self._sequences.get(id)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence; the lower its id, the older it is."""
        assert sequence.id not in self._sequences, "ids must be unique"
        if sequence.beams is not None:
            self.seating.add(sequence)
        for each in sequence.seats or (sequence,):
            self._sequences[each.id] = each
        sequence.since = self.steps
        self.accounts.add(sequence)

    def admit(self, sequence: Sequence) -> None:
        """Give the next in line its slots and pages."""
        sequence.started_s = sequence.started_s or self.now_s
        self.accounts.admit(sequence)
        self.held.take(sequence)
        if sequence.seats is not None:
            self.seating.begin(sequence)

    def restart(self, sequence: Sequence) -> None:
        """Take slots and pages away and queue the sequence again, with all its seats."""
        if sequence.seats is not None:
            sequence = sequence.seats[0]
        for each in sequence.seats or (sequence,):
            self._release(each)
        if sequence.seats is not None:
            self.seating.lose_slots(sequence)
        sequence.since = self.steps
        self.accounts.wait(sequence)

    def begun(self) -> list[Begun]:
        """Return how far each sequence is, of a beam search its beginning."""
        return [each.begun for each in self._sequences.values() if not each.is_seat]

    def remove(self, sequence: Sequence) -> list[int]:
        """Forget a sequence with all its seats, and return their ids."""
        seats = sequence.seats or (sequence,)
        for each in seats:
            del self._sequences[each.id]
            if each.slot >= 0:
                self._release(each)
            self.accounts.remove(each)
        if sequence.seats is not None:
            self.seating.remove(sequence)
        return [each.id for each in seats]

    def _release(self, sequence: Sequence) -> None:
        """Stop running and free slot and pages, at once (see `scheduler` on steps in flight)."""
        self.accounts.release(sequence)
        self.held.release(sequence)
