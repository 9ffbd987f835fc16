"""The ready replicas of every model as clients see them, updated from each plan."""

from __future__ import annotations

from collections.abc import Container, Mapping

from admin_server.plan import Plan
from admin_server.seen import SeenServer
from admin_server.watch import WatchSet


class WatchSets:
    """A watch set per model."""

    def __init__(self) -> None:
        self._sets: dict[str, WatchSet] = {}
        self._shown: dict[str, frozenset[str]] = {}  # by model, the servers in its set
        self._reach: dict[str, str] = {}  # by server, the address for requests
        self._next_base = 0

    def of(self, model_id: str) -> WatchSet:
        """The set of a model; a republished model starts beyond every number clients may have."""
        if model_id not in self._sets:
            self._sets[model_id] = WatchSet(self._next_base)
        return self._sets[model_id]

    def take(self, plan: Plan, before: Plan, servers: Mapping[str, SeenServer]) -> list[str]:
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
            if moved or self._shown.get(model_id) != report.ready:
                news = self._show(model_id, report.ready) or news
            if news:
                changed.append(model_id)
        return changed

    def keep(self, published: Container[str]) -> None:
        """Drop the models that are not published."""
        for model_id in [model_id for model_id in self._sets if model_id not in published]:
            self._next_base = max(self._next_base, self._sets.pop(model_id).seqno + 1)
            self._shown.pop(model_id, None)

    def _show(self, model_id: str, ready: frozenset[str]) -> bool:
        self._shown[model_id] = ready
        old = self.of(model_id)
        self._sets[model_id] = new = old.become(self._reach[address] for address in ready)
        return new is not old
