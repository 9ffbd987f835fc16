"""What has become of each model: its replicas, and in words why one is not ready.

Describes what the assigner chose and what is seen; decides nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from admin_server.assigner import Assignment
from admin_server.seen import (
    Failure,
    Place,
    Seen,
    Unload,
    failure_at,
    has_current,
    is_current,
    is_leaving,
    is_ready,
    pending_load,
    servable_at,
    waits,
)
from sax.types import ModelSpec, Progress, ReplicaStatus, ServableStatus


@dataclass(frozen=True, slots=True)
class ModelReport:
    """What has become of one model."""

    version: str  # the published one that this is about
    replicas: tuple[ReplicaStatus, ...]
    ready: frozenset[str]  # addresses that clients may use
    current: int  # how many of them have this version


def report(
    spec: ModelSpec,
    assignment: Assignment,
    seen: Seen,
    now: float,
    leaving: Mapping[Place, Unload],
) -> ModelReport:
    """Describe one model; `leaving` is what the plan is about to unload."""
    model_id = spec.model_id
    assigned = assignment.addresses[model_id]
    staying = [a for a in seen.servers if (a, model_id) not in leaving]
    ready = frozenset(a for a in staying if is_ready(seen, (a, model_id)))
    replicas = [_replica(spec, seen, address, now, leaving) for address in assigned]
    replicas += [
        ReplicaStatus(a, ServableStatus.LOADED, "serves until a replica elsewhere is ready")
        for a in sorted(ready.difference(assigned))
    ]
    missing = assignment.reasons[model_id][: max(0, spec.replicas - len(assigned))]
    replicas += [
        ReplicaStatus("", ServableStatus.NONE, _why_missing(reason, seen)) for reason in missing
    ]
    current = sum(has_current(seen, address, spec) for address in ready)
    return ModelReport(spec.version, tuple(replicas), ready, current)


def _why_missing(reason: str, seen: Seen) -> str:
    """The assigner's reason, and what else is known about servers that could help."""
    silent = [
        f"{address} has joined but has not answered yet{f' ({s.trouble})' if s.trouble else ''}"
        for address, s in sorted(seen.servers.items())
        if not s.answered
    ]
    if silent and len(silent) == len(seen.servers):
        return "; ".join([*silent, *seen.gone])
    return "; ".join([reason, *silent, *seen.gone])


def _replica(
    spec: ModelSpec, seen: Seen, address: str, now: float, leaving: Mapping[Place, Unload]
) -> ReplicaStatus:
    """One assigned replica, with the reason why it is not ready."""
    place = (address, spec.model_id)
    servable, failure = servable_at(seen, place), failure_at(seen, address, spec)
    status = servable.status if servable else ServableStatus.NONE
    progress = servable.progress if servable else None
    if place in leaving or is_leaving(seen, place) or status is ServableStatus.UNLOADING:
        unload = leaving.get(place)
        why = f"unloading: {unload.why}" if unload else "unloading before it is loaded again"
        if failure is not None:
            # A retry begins with an unload; what went wrong stays the news until it goes right.
            why = f"{why}; the last load failed: {failure.reason}"
        return ReplicaStatus(address, ServableStatus.UNLOADING, why)
    if status is ServableStatus.LOADED and servable is not None:
        return ReplicaStatus(address, status, "" if is_current(servable, spec) else _OUTDATED)
    if status is ServableStatus.LOADING or pending_load(seen, place):
        return ReplicaStatus(address, ServableStatus.LOADING, _describe(progress), progress)
    if failure is not None and waits(failure, now):
        return ReplicaStatus(address, ServableStatus.FAILED, _describe_failure(failure))
    if status is ServableStatus.FAILED and servable is not None:
        return ReplicaStatus(address, status, f"load failed: {servable.reason}")
    return ReplicaStatus(address, ServableStatus.NONE, _why_not_loading(place, seen))


_OUTDATED = "serves the version before the last update until its turn comes"


def _describe(progress: Progress | None) -> str:
    if progress is None or not progress.phase:
        return "loading"
    if not progress.total:
        return f"loading: {progress.phase}"
    unit = f" {progress.unit}" if progress.unit else ""
    return f"loading: {progress.phase} {progress.done} of {progress.total}{unit}"


def _describe_failure(failure: Failure) -> str:
    return (
        f"load failed: {failure.reason}; retry {failure.count} at {clock_time(failure.next_try_s)}"
    )


def _why_not_loading(place: Place, seen: Seen) -> str:
    address, _ = place
    others = sorted(model_id for where, model_id in seen.pending if where == address)
    if others:
        return f"waits until {address} is done with {', '.join(others)}"
    return "about to be loaded"


def clock_time(seconds: float) -> str:
    """hh:mm:ss of a moment, in UTC."""
    return time.strftime("%H:%M:%S UTC", time.gmtime(seconds))
