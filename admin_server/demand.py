"""Who holds requests for want of a replica, and what they are told.

A caller says it about once a second; what it said last counts until it has been silent for a
while. Knows nothing of RPCs or of how a replica comes about.
"""

from __future__ import annotations

from dataclasses import dataclass

from admin_server.report import ModelReport
from sax.errors import InvalidRequest
from sax.types import ModelSpec, ReplicaStatus, ServableStatus

SILENCE_S = 5.0
_LONGEST_CALLER = 100  # letters
_MOST_WAITING = 1_000_000


@dataclass(frozen=True, slots=True)
class Prospect:
    """Whether held requests are worth holding on, and why."""

    starting: bool
    reason: str


@dataclass(frozen=True, slots=True)
class _Told:
    waiting: int
    at_s: float


class Demand:
    """The held requests of every model, by caller."""

    def __init__(self) -> None:
        self._told: dict[str, dict[str, _Told]] = {}

    def tell(self, model_id: str, caller: str, waiting: int, now: float) -> None:
        """What a caller says replaces what it said before. Raises InvalidRequest by field."""
        if not 0 < len(caller) <= _LONGEST_CALLER:
            raise InvalidRequest(
                f"caller has {len(caller)} letters: send an id of your own of 1 to "
                f"{_LONGEST_CALLER}",
                param="caller",
            )
        if not 0 <= waiting <= _MOST_WAITING:
            raise InvalidRequest(
                f"{waiting} requests cannot wait: send 0 to {_MOST_WAITING}", param="waiting"
            )
        self._told.get(model_id, {}).pop(caller, None)
        if waiting:
            self._told.setdefault(model_id, {})[caller] = _Told(waiting, now)

    def held(self, model_id: str, now: float) -> int:
        """How many requests of a model wait now, at all callers together."""
        callers = self._told.get(model_id)
        if not callers:
            return 0
        # The one that was told first is the first: each word of a caller puts it last.
        while callers and now - next(iter(callers.values())).at_s >= SILENCE_S:
            del callers[next(iter(callers))]
        if not callers:
            del self._told[model_id]
        return sum(told.waiting for told in callers.values())

    def all_held(self, now: float) -> dict[str, int]:
        """The same of every model with any."""
        return {model_id: self.held(model_id, now) for model_id in list(self._told)}

    def forget(self, model_id: str) -> None:
        """The model is gone."""
        self._told.pop(model_id, None)


def prospect(spec: ModelSpec, wanted: int, report: ModelReport | None) -> Prospect:
    """What someone who holds requests of this model is told."""
    if spec.autoscaling is None:
        return Prospect(False, "")
    if report is None or not report.replicas or wanted == 0:
        return Prospect(True, "its first replica is asked for")
    if report.ready:
        return Prospect(True, "a replica is ready")
    coming = [replica for replica in report.replicas if _is_coming(replica)]
    if coming:
        return Prospect(True, coming[0].reason or f"it is being loaded on {coming[0].address}")
    return Prospect(False, report.replicas[0].reason)


def _is_coming(replica: ReplicaStatus) -> bool:
    """Does a server have it, without having failed?"""
    return bool(replica.address) and replica.status is not ServableStatus.FAILED
