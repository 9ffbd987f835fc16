"""Sequences that have not ended: whose turn it is, what each holds, and how it gives that back.
Pure.
"""

from __future__ import annotations

from model_server.engine.accounts import Accounts
from model_server.engine.limits import EngineLimits
from model_server.engine.paging.allocation import Allocation
from model_server.engine.request import Begun
from model_server.engine.sequence import Sequence


class LiveSequences:
    """All live sequences of a scheduler; those of a group count one by one."""

    def __init__(self, limits: EngineLimits) -> None:
        self.limits = limits
        self.steps = 0  # scheduled
        self.committed = 0  # steps
        self.now_s = 0.0  # when the next one is scheduled
        self.held = Allocation(limits)
        self.running = self.held.running
        self.accounts = Accounts(limits.max_running_per_account)
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
        for each in sequence.members:
            self._sequences[each.id] = each
        sequence.since = self.steps
        self.accounts.add(sequence)

    def admit(self, sequence: Sequence) -> None:
        """Give the next in line its slots and pages."""
        sequence.started_s = sequence.started_s or self.now_s
        self.accounts.admit(sequence)
        self.held.take(sequence)
        for part in sequence.parts:
            part.admitted(sequence)

    def restart(self, sequence: Sequence) -> None:
        """Take slots and pages away and queue the sequence again, with its group."""
        sequence = sequence.members[0]
        for each in sequence.members:
            self._release(each)
        for part in sequence.parts:
            part.restarted(sequence)
        sequence.since = self.steps
        self.accounts.wait(sequence)

    def begun(self) -> list[Begun]:
        """Return how far each sequence is, of a group its beginning."""
        return [each.begun for each in self._sequences.values() if not each.is_follower]

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence with its group."""
        for each in sequence.members:
            del self._sequences[each.id]
            if each.slot >= 0:
                self._release(each)
            self.accounts.remove(each)
            for part in each.parts:
                part.ended(each)

    def _release(self, sequence: Sequence) -> None:
        """Stop running and free slot and pages, at once (see `scheduler` on steps in flight)."""
        self.accounts.release(sequence)
        self.held.release(sequence)
        for part in sequence.parts:
            part.released(sequence)
