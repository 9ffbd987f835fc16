"""Requests held by callers until a replica is ready, and whether they should keep waiting.

A caller reports about once a second; its last report counts until it has been silent for a while.
"""

from __future__ import annotations

from dataclasses import dataclass

from admin_server.assignment.report import ModelReport
from sax.errors import InvalidRequest
from sax.types import ModelSpec, ReplicaStatus, ServableStatus

SILENCE_S = 5.0
_LONGEST_CALLER = 100  # letters
_MOST_WAITING = 1_000_000


@dataclass(frozen=True, slots=True)
class Prospect:
    """Tells whether held requests should keep waiting, and why."""

    starting: bool
    reason: str


@dataclass(frozen=True, slots=True)
class _CallerReport:
    waiting: int
    at_s: float


class HeldRequests:
    """Held requests of every model, by caller."""

    def __init__(self) -> None:
        self._told: dict[str, dict[str, _CallerReport]] = {}

    def report(self, model_id: str, caller: str, waiting: int, now: float) -> None:
        """Replace the caller's last report. Raises InvalidRequest naming the field."""
        if not 0 < len(caller) <= _LONGEST_CALLER:
            raise InvalidRequest(
                f"caller has {len(caller)} characters: send an id of your own of 1 to "
                f"{_LONGEST_CALLER}",
                param="caller",
            )
        if not 0 <= waiting <= _MOST_WAITING:
            raise InvalidRequest(
                f"waiting is {waiting}: send 0 to {_MOST_WAITING}", param="waiting"
            )
        self._told.get(model_id, {}).pop(caller, None)
        if waiting:
            self._told.setdefault(model_id, {})[caller] = _CallerReport(waiting, now)

    def held(self, model_id: str, now: float) -> int:
        callers = self._told.get(model_id)
        if not callers:
            return 0
        # Oldest report first: each new report moves its caller to the end.
        while callers and now - next(iter(callers.values())).at_s >= SILENCE_S:
            del callers[next(iter(callers))]
        if not callers:
            del self._told[model_id]
        return sum(each.waiting for each in callers.values())

    def all_held(self, now: float) -> dict[str, int]:
        return {model_id: self.held(model_id, now) for model_id in list(self._told)}

    def forget(self, model_id: str) -> None:
        self._told.pop(model_id, None)


def prospect(spec: ModelSpec, wanted: int, report: ModelReport | None) -> Prospect:
    if spec.autoscaling is None:
        return Prospect(False, "")
    if report is None or not report.replicas or wanted == 0:
        return Prospect(True, "its first replica has been requested")
    if report.ready:
        return Prospect(True, "a replica is ready")
    coming = [replica for replica in report.replicas if _is_coming(replica)]
    if coming:
        return Prospect(True, coming[0].reason or f"it is being loaded on {coming[0].address}")
    return Prospect(False, report.replicas[0].reason)


def _is_coming(replica: ReplicaStatus) -> bool:
    return bool(replica.address) and replica.status is not ServableStatus.FAILED
