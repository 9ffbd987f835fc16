"""Keeps the wanted counts of all autoscaled models from round to round.

Adds up what servers report and gateways hold, calls the autoscaler, and replaces the published
counts by its own. None of it is stored: a new leader continues from the replicas it finds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from admin_server.assignment.autoscaler import Scaling, ScalingLoad, ScalingTiming, decide, start
from admin_server.assignment.report import ModelReport
from admin_server.assignment.seen import Seen
from admin_server.ledger.state import CellState
from sax.errors import InvalidRequest
from sax.types import Autoscaling, ModelSpec, ReplicaStatus, ServableInfo, ServableStatus

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
    """Requests held by callers until a replica is ready, by model and caller.

    A caller reports about once a second; its last report counts until it has been silent for a
    while.
    """

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


_LOOK_S = 0.2  # rounds may be more frequent; windows of seconds need no more
_THERE = (ServableStatus.LOADED, ServableStatus.LOADING)


@dataclass(slots=True)
class _Sum:
    """Totals for one model over all servers."""

    there: int = 0  # replicas loaded or loading
    ready: int = 0
    queued: int = 0
    running: int = 0
    arrived: int = 0

    def add(self, servable: ServableInfo) -> None:
        self.there += 1
        if servable.status is ServableStatus.LOADED:
            self.ready += 1
            self.queued += servable.queued
            self.running += servable.running
            self.arrived += servable.arrived


@dataclass(frozen=True, slots=True)
class _Known:
    """A decision, and the published count it started from."""

    scaling: Scaling
    replicas: int


class Scaler:
    """The autoscaling state of a cell. Lives on the event loop."""

    def __init__(
        self, timing: ScalingTiming, restored: Iterable[str] = (), adopts_until_s: float = 0.0
    ) -> None:
        """Replicas of `restored` models that turn up until `adopts_until_s` are kept."""
        self.demand = HeldRequests()
        self._timing = timing
        self._restored = set(restored)
        self._adopts_until_s = adopts_until_s
        self._known: dict[str, _Known] = {}
        self._from: Mapping[str, ModelSpec] | None = None
        self._autoscaled: dict[str, ModelSpec] = {}
        self._counts: dict[str, int] = {}
        self._scaled: CellState | None = None
        self._looked_at_s = -math.inf

    def scaled(self, state: CellState, seen: Seen, now: float) -> CellState:
        """The state with the counts wanted now.

        Returns `state` itself if no model is autoscaled, and the previous result if nothing
        changed.
        """
        self._take_up(state)
        if not self._autoscaled:
            return state
        settled = now >= self._adopts_until_s  # until then, a replica that turns up counts at once
        if self._scaled is not None and settled and 0 <= now - self._looked_at_s < _LOOK_S:
            return self._scaled
        self._looked_at_s = now
        sums = self._sums(seen)
        for model_id, spec in self._autoscaled.items():
            self._look(spec, sums.get(model_id) or _Sum(), now)
        counts = {model_id: self._known[model_id].scaling.wanted for model_id in self._autoscaled}
        if self._scaled is None or counts != self._counts:
            self._counts, self._scaled = counts, _with_counts(state, counts)
        return self._scaled

    def report(self, spec: ModelSpec, caller: str, waiting: int, now: float) -> None:
        """A caller reports held requests. Raises InvalidRequest naming the field."""
        heard = waiting if spec.autoscaling else min(waiting, 0)  # other models do not scale
        self.demand.report(spec.model_id, caller, heard, now)
        self._looked_at_s = -math.inf

    def wanted(self, spec: ModelSpec) -> int:
        if spec.autoscaling is None:
            return spec.replicas
        known = self._known.get(spec.model_id)
        scaling = known.scaling if known else _begin(spec, spec.autoscaling, 0.0)
        return max(
            spec.autoscaling.min_replicas, min(scaling.wanted, spec.autoscaling.max_replicas)
        )

    def reason(self, spec: ModelSpec) -> str:
        """Why that many; empty without autoscaling."""
        known = self._known.get(spec.model_id)
        if spec.autoscaling is None:
            return ""
        return known.scaling.reason if known else _begin(spec, spec.autoscaling, 0.0).reason

    def _take_up(self, state: CellState) -> None:
        """Find the autoscaled models, once per state."""
        if state.models is self._from:
            return
        self._from, self._scaled = state.models, None
        self._autoscaled = {m: s for m, s in state.models.items() if s.autoscaling is not None}
        for model_id in self._known.keys() - self._autoscaled.keys():
            del self._known[model_id]
            self.demand.forget(model_id)
        self._restored &= self._autoscaled.keys()

    def _sums(self, seen: Seen) -> dict[str, _Sum]:
        sums: dict[str, _Sum] = {}
        for address, server in seen.servers.items():
            for servable in server.joined.servables:
                model_id = servable.model_id
                if model_id not in self._autoscaled or servable.status not in _THERE:
                    continue
                if seen.model(model_id).is_leaving(address):
                    continue
                if model_id not in sums:
                    sums[model_id] = _Sum()
                sums[model_id].add(servable)
        return sums

    def _look(self, spec: ModelSpec, found: _Sum, now: float) -> None:
        bounds, known = spec.autoscaling, self._known.get(spec.model_id)
        assert bounds is not None
        traffic = ScalingLoad(
            ready=found.ready,
            queued=found.queued,
            running=found.running,
            arrived=found.arrived,
            held=self.demand.held(spec.model_id, now),
        )
        if spec.model_id in self._restored and now < self._adopts_until_s:
            before = known.scaling.wanted if known else 0
            count = max(before, found.there, 1 if traffic.some else 0)
            found_here = f"{found.there} found when this admin server began to lead"
            scaling = start(bounds, count, found_here, now)
        elif known is None or known.replicas != spec.replicas:
            scaling = _begin(spec, bounds, now)
        else:
            scaling = decide(bounds, known.scaling, traffic, now, self._timing)
        self._known[spec.model_id] = _Known(scaling, spec.replicas)


def _begin(spec: ModelSpec, bounds: Autoscaling, now: float) -> Scaling:
    return start(bounds, spec.replicas, f"published with {spec.replicas}", now)


def _with_counts(state: CellState, counts: Mapping[str, int]) -> CellState:
    models = dict(state.models)
    for model_id, count in counts.items():
        if models[model_id].replicas != count:
            models[model_id] = replace(models[model_id], replicas=count)
    return replace(state, models=models)
