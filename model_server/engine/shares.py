"""Holders of slots with equal shares, and how much each was served. Pure.

Served are the tokens computed for a holder, those computed again not counted twice. Who comes back,
or comes for the first time, is taken to have been served as much as an equal share since the
beginning would have been (`Peers.clock`): idle time is no credit, and leaving clears no debt. The
clock goes on while anybody is served, so that newcomers without end cannot keep others waiting.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from model_server.engine.sequence import Sequence

_MOST_REMEMBERED = 4096  # holders that left and were served more than their share


class Holder:
    """Somebody who holds slots: an account or a member of one."""

    __slots__ = ("charged", "live", "name", "running", "waiting")

    def __init__(self, name: str, charged: float) -> None:
        self.name = name
        self.charged = charged  # tokens, without those of the sequences that run
        self.live = 0
        self.waiting = 0
        self.running: list[Sequence] = []

    @property
    def served(self) -> float:
        return self.charged + sum(map(fresh_tokens, self.running))

    @property
    def load(self) -> tuple[int, float]:
        return len(self.running), self.served


H = TypeVar("H", bound=Holder)


class Peers(Generic[H]):
    """Holders with equal shares."""

    __slots__ = ("clock", "here", "left")

    def __init__(self) -> None:
        self.here: dict[str, H] = {}  # with live sequences
        self.clock = 0.0  # tokens that an equal share since the beginning would have been
        self.left: dict[str, float] = {}  # tokens charged to those who left, if above the clock

    def start(self, name: str) -> float:
        """Return what a holder who comes now is charged."""
        return max(self.clock, self.left.pop(name, 0.0))

    def charge(self, holder: H, tokens: int) -> None:
        holder.charged += tokens
        self.clock += tokens / len(self.here)

    def leave(self, holder: H) -> None:
        del self.here[holder.name]
        if not self.here:
            self.left.clear()
        elif holder.charged > self.clock:
            self.left[holder.name] = holder.charged
            if len(self.left) > _MOST_REMEMBERED:
                self._forget()

    def _forget(self) -> None:
        """Forget who has no debt any more, and if that is nobody, who left first."""
        kept = {name: charged for name, charged in self.left.items() if charged > self.clock}
        if len(kept) == len(self.left):
            del kept[next(iter(kept))]
        self.left = kept


def fresh_tokens(sequence: Sequence) -> int:
    """Return the positions computed for a running sequence that were not computed before.

    Those that it found in the prefix cache are not counted.
    """
    return max(0, sequence.launched - max(sequence.lost, sequence.paging.reused))
