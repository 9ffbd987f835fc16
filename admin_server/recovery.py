"""Models whose replicas a new leader withholds from clients until it has found them again.

Meanwhile clients keep using the replicas they know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from admin_server.seen import SeenServer


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
