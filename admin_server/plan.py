"""What to do so that seen becomes wanted: the reconciler's decisions, as one pure function.

From the published specs and what is seen of the servers comes a plan: loads, unloads, and what has
become of each model. Knows nothing of RPCs, threads, clocks or storage.

A model whose last update changes what is loaded is rolled: one replica at a time, and never the
last ready one before another has the new version; only where no second server can take the model
is it reloaded in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from admin_server.assigner import Assignment, assign
from admin_server.report import ModelReport, report
from admin_server.seen import (
    Action,
    Load,
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
from admin_server.state import CellState
from sax.types import ModelSpec, ServableStatus

_HELD = (ServableStatus.LOADING, ServableStatus.LOADED, ServableStatus.FAILED)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do, and how things stand."""

    actions: tuple[Action, ...]
    models: Mapping[str, ModelReport]


def plan_actions(wanted: CellState, seen: Seen, now: float, *, acting: bool = True) -> Plan:
    """Decide. `acting=False` reports only: servers may still be on their way."""
    specs = [wanted.models[model_id] for model_id in sorted(wanted.models)]
    assignment = _assign(specs, seen, now)
    unloads = _unloads(wanted, assignment, seen, now) if acting else []
    loads = _loads(specs, assignment, seen, now, unloads) if acting else []
    leaving = {(unload.address, unload.model_id): unload for unload in unloads}
    return Plan(
        actions=(*unloads, *loads),
        models={spec.model_id: report(spec, assignment, seen, now, leaving) for spec in specs},
    )


# Where things should be


def _assign(specs: Sequence[ModelSpec], seen: Seen, now: float) -> Assignment:
    servers = [server.joined for server in seen.servers.values() if server.answered]
    return assign(
        [_with_surge(spec, seen) for spec in specs],
        sorted(servers, key=lambda server: server.info.address),
        {spec.model_id: _current(spec, seen, now) for spec in specs},
        {spec.model_id: _failed(spec, seen, now) for spec in specs},
    )


def _with_surge(spec: ModelSpec, seen: Seen) -> ModelSpec:
    """A lone replica of an older version keeps serving beside the one that will follow it."""
    ready = [a for a in seen.servers if is_ready(seen, (a, spec.model_id))]
    alone = spec.replicas == 1 and ready and not any(has_current(seen, a, spec) for a in ready)
    return replace(spec, replicas=2) if alone else spec


def _current(spec: ModelSpec, seen: Seen, now: float) -> list[str]:
    """The servers that have the model or are about to, the ones most worth keeping first."""
    ranks = {address: _rank(spec, seen, address, now) for address in seen.servers}
    there = [address for address, rank in ranks.items() if rank is not None]
    return sorted(there, key=lambda address: (ranks[address], address))


def _rank(spec: ModelSpec, seen: Seen, address: str, now: float) -> int | None:
    place = (address, spec.model_id)
    servable, load = servable_at(seen, place), pending_load(seen, place)
    if is_leaving(seen, place):
        return None
    if servable is not None and servable.status is ServableStatus.LOADED:
        return 0 if is_current(servable, spec) else 1
    if load is not None or (servable is not None and servable.status is ServableStatus.LOADING):
        return 2
    held = servable is not None and servable.status in _HELD
    return 3 if held or waits(failure_at(seen, address, spec), now) else None


def _failed(spec: ModelSpec, seen: Seen, now: float) -> frozenset[str]:
    """Where this version failed to load and its next try is not being waited for there."""
    failures = {address: failure_at(seen, address, spec) for address in seen.servers}
    return frozenset(
        address
        for address, failure in failures.items()
        if failure is not None and not failure.retrying and not waits(failure, now)
    )


# What to do about it


def _unloads(wanted: CellState, assignment: Assignment, seen: Seen, now: float) -> list[Unload]:
    unloads: list[Unload] = []
    for address, model_id in sorted(_held_places(seen)):
        spec = wanted.models.get(model_id)
        assigned = assignment.addresses.get(model_id, ())
        if spec is None:
            why = "it is not published any more"
        elif address in assigned:
            why = _why_reload(spec, seen, address, assigned, now)
        else:
            why = _why_leave(spec, seen, address, assigned)
        if why:
            unloads.append(Unload(address, model_id, why))
    return unloads


def _held_places(seen: Seen) -> list[Place]:
    """Every server and model between which there is something to undo."""
    held = [
        (address, servable.model_id)
        for address, server in seen.servers.items()
        for servable in server.joined.servables
        if servable.status in _HELD
    ]
    loading = [place for place in seen.pending if pending_load(seen, place)]
    return [place for place in {*held, *loading} if not is_leaving(seen, place)]


def _why_reload(
    spec: ModelSpec, seen: Seen, address: str, assigned: Sequence[str], now: float
) -> str:
    """Why a replica that stays where it is must be loaded anew; "" if it need not or must wait."""
    place = (address, spec.model_id)
    servable, load = servable_at(seen, place), pending_load(seen, place)
    if load is not None:
        return "" if load.spec.version == spec.version else "it was updated while it was loading"
    if servable is None:
        return ""
    if servable.status is ServableStatus.LOADED:
        return "it was updated" if address == _next_to_roll(spec, seen, assigned) else ""
    if not is_current(servable, spec):
        return "it was updated"
    failed = servable.status is ServableStatus.FAILED
    return "it is tried again" if failed and not waits(failure_at(seen, address, spec), now) else ""


def _next_to_roll(spec: ModelSpec, seen: Seen, assigned: Sequence[str]) -> str | None:
    """The ready replica to reload for an update: one, and only while all others are ready."""
    if not all(is_ready(seen, (address, spec.model_id)) for address in assigned):
        return None
    outdated = [address for address in assigned if not has_current(seen, address, spec)]
    return min(outdated, default=None)


def _why_leave(spec: ModelSpec, seen: Seen, address: str, assigned: Sequence[str]) -> str:
    """Why a replica goes from a server that is not assigned; "" while it is the last ready one."""
    ready = any(is_ready(seen, (other, spec.model_id)) for other in assigned)
    if assigned and not ready and is_ready(seen, (address, spec.model_id)):
        return ""
    return "it is not wanted on this server any more"


def _loads(
    specs: Sequence[ModelSpec],
    assignment: Assignment,
    seen: Seen,
    now: float,
    unloads: Sequence[Unload],
) -> list[Load]:
    # One action at a time for a server: what a load may fill depends on what went before it.
    busy = {unload.address for unload in unloads} | {address for address, _ in seen.pending}
    loads: list[Load] = []
    for spec in specs:
        for address in assignment.addresses[spec.model_id]:
            there = servable_at(seen, (address, spec.model_id)) is not None
            if not (there or address in busy or waits(failure_at(seen, address, spec), now)):
                busy.add(address)
                loads.append(Load(address, spec))
    return loads
