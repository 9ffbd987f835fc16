"""Reports on each model: its replicas, and why one is not ready."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

from admin_server.assignment.assigner import Assignment
from admin_server.assignment.canaries import canary_share, wanted_version
from admin_server.assignment.seen import (
    Failure,
    Place,
    Seen,
    SeenModel,
    UnloadAction,
    is_current,
    waits,
)
from sax.format import clock_time, count, listing
from sax.types import CanaryShare, ModelSpec, Progress, ReplicaStatus, ServableInfo, ServableStatus


@dataclass(frozen=True, slots=True)
class ModelReport:
    version: str  # that it describes; with a canary, both versions
    replicas: tuple[ReplicaStatus, ...]
    ready: frozenset[str]  # addresses that clients may use
    current: int  # how many of them have the version that they are to have
    canary: CanaryShare | None = None  # None: no ready replica has the version of a canary


@dataclass(frozen=True, slots=True)
class Awaited:
    """Servers that may hold replicas of a model and have not answered yet."""

    replicas: int  # not placed elsewhere meanwhile
    servers: Sequence[str]

    def reason(self, seen: Seen) -> str:
        one = len(self.servers) == 1
        trouble = seen.servers[self.servers[0]].trouble if one else ""
        return (
            f"waiting for {listing(self.servers)}, which may still hold it but "
            f"{'has' if one else 'have'} not answered yet{f' ({trouble})' if trouble else ''}"
        )


@dataclass(frozen=True)
class Intent:
    """Pending actions of the plan, and servers it waits for."""

    assignment: Assignment
    leaving: Mapping[Place, UnloadAction]  # about to be unloaded
    awaited: Mapping[str, Awaited]  # by model
    crowded: Mapping[Place, str]  # models that must go before this one can be loaded

    @cached_property
    def leaving_models(self) -> frozenset[str]:
        return frozenset(model_id for _, model_id in self.leaving)


def report(spec: ModelSpec, intent: Intent, seen: Seen, now: float) -> ModelReport:
    model_id, model = spec.model_id, seen.model(spec.model_id)
    assigned = intent.assignment.addresses[model_id]
    ready = model.ready()
    if model_id in intent.leaving_models:
        ready = [address for address in ready if (address, model_id) not in intent.leaving]
    targets = {address: intent.assignment.target(spec, address) for address in {*assigned, *ready}}
    current = sum(model.has_current(address, targets[address]) for address in ready)
    outdated = _why_outdated(spec, model, assigned, len(ready) - current)
    replicas = [_replica(targets[a], model, a, intent, seen, now, outdated) for a in assigned]
    if spec.canary is not None:
        replicas = [replace(each, canary=targets[each.address] is not spec) for each in replicas]
    replicas += [
        ReplicaStatus(a, ServableStatus.LOADED, "keeps serving until a replica elsewhere is ready")
        for a in sorted(ready)
        if a not in assigned
    ]
    if len(assigned) < spec.replicas:
        replicas += _missing(spec, intent, seen)
    share = canary_share(spec, model, ready)
    return ModelReport(wanted_version(spec), tuple(replicas), frozenset(ready), current, share)


def report_ready(spec: ModelSpec, held: Mapping[str, ServableInfo]) -> ModelReport:
    replicas = tuple(
        [ReplicaStatus(a, ServableStatus.LOADED, note=held[a].note) for a in sorted(held)]
    )
    return ModelReport(spec.version, replicas, frozenset(held), len(replicas))


def with_notes(
    replicas: Sequence[ReplicaStatus], notes: Sequence[str]
) -> tuple[ReplicaStatus, ...]:
    """Append one note to each replica that has no server."""
    left = iter(notes)
    return tuple(
        replica
        if replica.address
        else replace(replica, reason="; ".join([replica.reason, *islice(left, 1)]))
        for replica in replicas
    )


def _missing(spec: ModelSpec, intent: Intent, seen: Seen) -> list[ReplicaStatus]:
    assigned = intent.assignment.addresses[spec.model_id]
    missing = max(0, spec.replicas - len(assigned))
    awaited = intent.awaited.get(spec.model_id)
    reasons = [awaited.reason(seen)] * awaited.replicas if awaited is not None else []
    advice = _what_else(seen) if missing > len(reasons) else ""
    for reason in intent.assignment.reasons[spec.model_id][: missing - len(reasons)]:
        alone = advice and seen.servers and not seen.has_answers
        reasons.append(advice if alone else "; ".join(filter(None, [reason, advice])))
    return [ReplicaStatus("", ServableStatus.NONE, reason) for reason in reasons[:missing]]


def _what_else(seen: Seen) -> str:
    """Servers that may help once they answer or come back."""
    return "; ".join([*seen.silent, *seen.gone])


def _replica(
    spec: ModelSpec,
    model: SeenModel,
    address: str,
    intent: Intent,
    seen: Seen,
    now: float,
    outdated: str,
) -> ReplicaStatus:
    place = (address, spec.model_id)
    servable, failure = model.held.get(address), model.failure(address, spec)
    status = servable.status if servable else ServableStatus.NONE
    progress = servable.progress if servable else None
    if place in intent.leaving or model.is_leaving(address) or status is ServableStatus.UNLOADING:
        return _leaving(address, intent.leaving.get(place), failure)
    if status is ServableStatus.LOADED and servable is not None:
        if not is_current(servable, spec):
            return ReplicaStatus(address, status, outdated)
        why = _why_old_acls(spec, model, address)
        return ReplicaStatus(address, status, why, note=servable.note)
    if status is ServableStatus.LOADING or model.load(address):
        return ReplicaStatus(address, ServableStatus.LOADING, _describe(progress), progress)
    if failure is not None and waits(failure, now):
        if failure.need is not None:  # the model itself is fine
            return ReplicaStatus(address, ServableStatus.NONE, _describe_refusal(failure))
        return ReplicaStatus(address, ServableStatus.FAILED, _describe_failure(failure))
    if status is ServableStatus.FAILED and servable is not None and servable.need is None:
        return ReplicaStatus(address, status, f"load failed: {servable.reason}")
    return ReplicaStatus(address, ServableStatus.NONE, _why_not_loading(place, intent, seen))


def _leaving(address: str, unload: UnloadAction | None, failure: Failure | None) -> ReplicaStatus:
    why = f"unloading: {unload.why}" if unload else "unloading before a reload"
    if failure is not None:
        # A retry begins with an unload; keep showing the failure until a load succeeds.
        why = f"{why}; the last load failed: {failure.reason}"
    return ReplicaStatus(address, ServableStatus.UNLOADING, why)


def _why_outdated(spec: ModelSpec, model: SeenModel, assigned: Sequence[str], staying: int) -> str:
    """Why ready replicas still have the version before the last update."""
    failures = [
        (failure.next_try_s, address, failure)
        for address in {*assigned, *model.refusals(spec)}
        if model.failures and (failure := model.failure(address, spec)) is not None
    ]
    if spec.canary is not None:
        return "serves its version until its turn to change to the canary's, or back"
    if not failures or not staying:
        return "still serves the previous version until its turn in the update"
    _, address, failure = max(failures, key=lambda failure: failure[:2])
    why, until = f"the new version failed to load on {address}", "a retry works"
    if failure.lasting:
        until = "the model is updated"
    if failure.need is not None:
        why, until = f"{address} has too little memory for the new version", "there is more"
    return (
        f"still serves the previous version: the update stopped because {why} "
        f"({failure.reason}); {count(staying, 'replica')} {'stay' if staying > 1 else 'stays'} on "
        f"the old version until {until}, and `sax rollback {spec.model_id}` goes back to it"
    )


def _why_old_acls(spec: ModelSpec, model: SeenModel, address: str) -> str:
    """Why a ready replica lacks the ACLs of its spec; "" if it has them."""
    push = model.pushes.get(address)
    if push is None or not model.has_stale_acls(address, spec):
        return ""
    why = push.reason or "its server accepted the new ones but does not report them"
    return (
        f"ready, but with the previous access control lists: {why}; "
        f"try {push.count + 1} at {clock_time(push.next_try_s)}"
    )


def _describe(progress: Progress | None) -> str:
    if progress is None or not progress.phase:
        return "loading"
    if not progress.total:
        return f"loading: {progress.phase}"
    unit = f" {progress.unit}" if progress.unit else ""
    return f"loading: {progress.phase} {progress.done} of {progress.total}{unit}"


def _describe_failure(failure: Failure) -> str:
    if failure.lasting:
        return f"load failed: {failure.reason}; it is not retried until the model is updated"
    return (
        f"load failed: {failure.reason}; retry {failure.count} at {clock_time(failure.next_try_s)}"
    )


def _describe_refusal(failure: Failure) -> str:
    return f"too little memory: {failure.reason}; retry at {clock_time(failure.next_try_s)}"


def _why_not_loading(place: Place, intent: Intent, seen: Seen) -> str:
    address, _ = place
    if place in intent.crowded:
        return f"waiting for memory on {address}: {intent.crowded[place]} must be unloaded first"
    if others := seen.under_way(address):
        return f"waiting for {address} to finish with {listing(others)}"
    return "about to be loaded"
