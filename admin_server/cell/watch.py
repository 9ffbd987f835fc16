"""A watchable set: its values, a sequence number, and the log of its changes.

Saxml's WatchLoc protocol without the wire: a client names the sequence number it has, and gets the
changes since, or the full set if the log no longer reaches back that far.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from sax.types import CanaryShare


@dataclass(frozen=True, slots=True)
class Mutation:
    value: str
    added: bool


@dataclass(frozen=True, slots=True)
class Delta:
    """The changes that bring a client to `next_seqno`."""

    next_seqno: int
    full: bool = False  # replace everything by `values`
    values: tuple[str, ...] = ()
    changes: tuple[Mutation, ...] = ()
    canary: CanaryShare | None = None  # as of `next_seqno`


@dataclass(frozen=True, slots=True)
class WatchSet:
    """The values at `seqno`, and the changes from `base` (exclusive) to there."""

    base: int  # a client below this number needs the full set
    values: frozenset[str] = frozenset()
    changes: tuple[Mutation, ...] = ()

    @property
    def seqno(self) -> int:
        return self.base + len(self.changes)

    def become(self, values: Iterable[str], anew: Collection[str] = ()) -> WatchSet:
        """The set with these values; the same object if nothing changed.

        Those of `anew` are added even if they are there: something else about them changed.
        """
        new = frozenset(values)
        gone = [Mutation(value, added=False) for value in sorted(self.values - new)]
        come = [Mutation(value, added=True) for value in sorted(new - (self.values - {*anew}))]
        if not gone and not come:
            return self
        return replace(self, values=new, changes=(*self.changes, *come, *gone))._compacted()

    def since(self, seqno: int | None) -> Delta:
        """Changes since `seqno`; None or an unknown number gets the full set."""
        if seqno is None or not self.base <= seqno <= self.seqno:
            return Delta(self.seqno, full=True, values=tuple(sorted(self.values)))
        return Delta(self.seqno, changes=self.changes[seqno - self.base :])

    def _compacted(self) -> WatchSet:
        # Keep the log only while it is about as cheap to send as the full set.
        surplus = len(self.changes) - 2 * max(len(self.values), 8)
        if surplus <= 0:
            return self
        return replace(self, base=self.base + surplus, changes=self.changes[surplus:])
