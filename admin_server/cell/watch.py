"""A watchable set: its values, a sequence number, and the log of its changes.

Saxml's WatchLoc protocol without the wire: a client names the sequence number it has, and gets the
changes since, or the full set if the log no longer reaches back that far.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass, replace

from admin_server.assignment.plan import CellActions
from admin_server.assignment.seen import SeenServer
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


class Recovery:
    """The models published before this leader, until each is found again."""

    def __init__(self, models: Iterable[str], settled_at_s: float) -> None:
        self._models = frozenset(models)
        self._settled_at_s = settled_at_s
        self._unheard: frozenset[str] = self._models  # may be on servers that have not answered yet

    @property
    def over(self) -> bool:
        """True once nothing is withheld."""
        return not self._models

    def look(
        self, servers: Mapping[str, SeenServer], found: Callable[[str], bool], now: float
    ) -> None:
        """Update from the servers; `found` returns True if all replicas of a model are ready."""
        silent = (server.may_hold for server in servers.values() if not server.answered)
        self._unheard = self._models & frozenset[str]().union(*silent)
        self._models = frozenset(m for m in self._models if self.withholds(m, now) and not found(m))

    def withholds(self, model_id: str, now: float) -> bool:
        """True while replicas of the model may still turn up."""
        early = now < self._settled_at_s or model_id in self._unheard
        return model_id in self._models and early


class WatchSets:
    def __init__(self) -> None:
        self._sets: dict[str, WatchSet] = {}
        self._shown: dict[str, frozenset[str]] = {}  # by model, the servers in its set
        self._canaries: dict[str, CanaryShare] = {}  # by model, with the addresses for requests
        self._reach: dict[str, str] = {}  # by server, the address for requests
        self._next_base = 0

    def of(self, model_id: str) -> WatchSet:
        """The set of a model; a republished model starts beyond every number clients may have."""
        if model_id not in self._sets:
            self._sets[model_id] = WatchSet(self._next_base)
        return self._sets[model_id]

    def since(self, model_id: str, seqno: int | None) -> Delta:
        """Changes of a model's set since `seqno`, and how its requests are divided after them."""
        delta = self.of(model_id).since(seqno)
        return replace(delta, canary=self._canaries.get(model_id))

    def take(
        self, plan: CellActions, before: CellActions, servers: Mapping[str, SeenServer]
    ) -> list[str]:
        """Update from the plan; returns the models that changed since the previous one."""
        reach = {
            address: server.joined.info.data_address or address
            for address, server in servers.items()
        }
        moved, self._reach = reach != self._reach, reach
        changed: list[str] = []
        for model_id, report in plan.models.items():
            old = before.models.get(model_id)
            news = old is None or (old.version, old.current) != (report.version, report.current)
            canary = self._reached(report.canary)
            divided = canary != self._canaries.get(model_id)
            if moved or divided or self._shown.get(model_id) != report.ready:
                news = self._show(model_id, report.ready, canary) or news
            if news:
                changed.append(model_id)
        return changed

    def keep(self, published: Container[str]) -> None:
        for model_id in [model_id for model_id in self._sets if model_id not in published]:
            self._next_base = max(self._next_base, self._sets.pop(model_id).seqno + 1)
            self._shown.pop(model_id, None)
            self._canaries.pop(model_id, None)

    def _show(self, model_id: str, ready: frozenset[str], canary: CanaryShare | None) -> bool:
        self._shown[model_id] = ready
        before = self._canaries.pop(model_id, None)
        if canary is not None:
            self._canaries[model_id] = canary
        shares = (each for each in (before, canary) if each is not None and before != canary)
        anew = frozenset[str]().union(*(each.addresses for each in shares))
        old = self.of(model_id)
        self._sets[model_id] = new = old.become((self._reach[a] for a in ready), anew)
        return new is not old

    def _reached(self, canary: CanaryShare | None) -> CanaryShare | None:
        if canary is None:
            return None
        return replace(canary, addresses=frozenset(self._reach[a] for a in canary.addresses))
