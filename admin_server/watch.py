"""A set that can be watched: its values, a sequence number, and the log of its changes.

Saxml's WatchLoc protocol without the wire: a client names the sequence number it has, and gets
what changed since, or the full set when the log no longer reaches back that far. Values in,
values out; knows nothing of waiting, clients, servers or what the values mean.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Mutation:
    """One value that came or went."""

    value: str
    added: bool


@dataclass(frozen=True, slots=True)
class Delta:
    """What a client that has some sequence number must do to have the set of `next_seqno`."""

    next_seqno: int
    full: bool = False  # forget what you have and take `values`
    values: tuple[str, ...] = ()
    changes: tuple[Mutation, ...] = ()


@dataclass(frozen=True, slots=True)
class WatchSet:
    """The values at `seqno`, and the changes from `base` (exclusive) to there."""

    base: int  # a client at a number below this one needs the full set
    values: frozenset[str] = frozenset()
    changes: tuple[Mutation, ...] = ()

    @property
    def seqno(self) -> int:
        """The number of the newest change."""
        return self.base + len(self.changes)

    def become(self, values: Iterable[str]) -> WatchSet:
        """The set with these values; the same set if they are no change."""
        new = frozenset(values)
        gone = [Mutation(value, added=False) for value in sorted(self.values - new)]
        come = [Mutation(value, added=True) for value in sorted(new - self.values)]
        if not gone and not come:
            return self
        return replace(self, values=new, changes=(*self.changes, *come, *gone))._compacted()

    def since(self, seqno: int | None) -> Delta:
        """What changed since; None, or a number this set never gave, asks for the full set."""
        if seqno is None or not self.base <= seqno <= self.seqno:
            return Delta(self.seqno, full=True, values=tuple(sorted(self.values)))
        return Delta(self.seqno, changes=self.changes[seqno - self.base :])

    def _compacted(self) -> WatchSet:
        # A client pays for the log only while it is about as cheap as the full set.
        surplus = len(self.changes) - 2 * max(len(self.values), 8)
        if surplus <= 0:
            return self
        return replace(self, base=self.base + surplus, changes=self.changes[surplus:])
