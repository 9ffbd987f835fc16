"""The planner: how to get from the seen state to the wanted one, as one pure function.

From the published specs and what is seen of the servers it makes a plan: loads, unloads, ACL
updates, and a report on each model.

A model that may be on a server which has not answered since this admin server began to lead is not
loaded elsewhere, or it would be loaded twice. Cost is proportional to servers + models + replicas.

A model whose last update changes what is loaded is rolled: one replica at a time, and never the
last ready one before another has the new version; it is reloaded in place only if no second server
can take the model. While the new version fails to load, nothing more is unloaded.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from admin_server.assignment.assigner import Assignment, Settled, assign
from admin_server.assignment.canaries import canary_targets, is_wanted, variants, with_canaries
from admin_server.assignment.fleet import Fleet
from admin_server.assignment.report import Awaited, Intent, ModelReport, report, report_ready
from admin_server.assignment.seen import (
    HELD,
    Action,
    LoadAction,
    Seen,
    SeenModel,
    UnloadAction,
    UpdateAcls,
    is_current,
    waits,
)
from admin_server.ledger.placement import demand_of, devices_of
from admin_server.ledger.state import CellState
from sax.adapters import base_of
from sax.format import listing
from sax.need import Need
from sax.types import JoinedServer, ModelSpec, ServableStatus

_IN_MEMORY = (ServableStatus.LOADING, ServableStatus.LOADED, ServableStatus.UNLOADING)


@dataclass(frozen=True, slots=True)
class SettledModel:
    """A model that needs nothing, and the observation that shows it."""

    settled: Settled
    model: SeenModel
    report: ModelReport


@dataclass(frozen=True, slots=True)
class CellActions:
    """Actions to take, and a report on each model."""

    actions: tuple[Action, ...]
    models: Mapping[str, ModelReport]
    looks: int = 0  # servers examined: the cost of the search
    done: Mapping[str, SettledModel] = field(default_factory=dict[str, SettledModel])
    # By model, the replicas that no joined server can take, nor any server still awaited.
    short: Mapping[str, int] = field(default_factory=dict[str, int])


def plan_actions(
    wanted: CellState,
    seen: Seen,
    now: float,
    *,
    acting: bool = True,
    before: CellActions | None = None,
) -> CellActions:
    """Make the plan. `acting=False` only reports: servers may still be on their way.

    `before` only saves work: models that were done then and look the same now are skipped.
    """
    wanted = with_canaries(wanted)
    specs = [wanted.models[model_id] for model_id in sorted(wanted.models)]
    done = _done(specs, seen, before.done if before is not None else {})
    undone = [spec for spec in specs if spec.model_id not in done]
    if not undone and seen.models.keys() <= done.keys():
        return CellActions(
            (), {spec.model_id: done[spec.model_id].report for spec in specs}, 0, done
        )
    current = {spec.model_id: _current(spec, seen.model(spec.model_id), now) for spec in undone}
    awaited = _awaited(undone, current, seen)
    assignment = _assign(undone, current, awaited, done, seen, now)
    assignment = replace(assignment, canaries=_canaries(undone, assignment, seen))
    going = _unloads(wanted, assignment, {*awaited}, done, seen, now) if acting else []
    leaving = {(unload.address, unload.model_id): unload for unload in going}
    loads, crowded = _loads(wanted, undone, assignment, seen, now, going) if acting else ([], {})
    pushes = _pushes(undone, seen, now) if acting else []
    intent = Intent(assignment, leaving, awaited, crowded)
    reports = {spec.model_id: report(spec, intent, seen, now) for spec in undone}
    reports |= {model_id: one.report for model_id, one in done.items()}
    return CellActions(
        actions=(*going, *loads, *pushes),
        models={spec.model_id: reports[spec.model_id] for spec in specs},
        looks=assignment.looks,
        done=done,
        short=_short(undone, assignment, awaited),
    )


def _short(
    specs: Sequence[ModelSpec], assignment: Assignment, awaited: Mapping[str, Awaited]
) -> dict[str, int]:
    short: dict[str, int] = {}
    for spec in specs:
        if base_of(spec):
            continue  # more servers would not help: it goes where its base is
        found = len(assignment.addresses[spec.model_id])
        if (waiting := awaited.get(spec.model_id)) is not None:
            found += waiting.replicas
        if found < spec.replicas:
            short[spec.model_id] = spec.replicas - found
    return short


def _done(
    specs: Sequence[ModelSpec], seen: Seen, before: Mapping[str, SettledModel]
) -> dict[str, SettledModel]:
    """Models that need nothing: most of a cell, most of the time."""
    done: dict[str, SettledModel] = {}
    for spec in specs:
        model, known = seen.model(spec.model_id), before.get(spec.model_id)
        if known is not None and known.model is model and known.settled.spec is spec:
            done[spec.model_id] = known
        elif spec.canary is None and len(model.held) == spec.replicas and model.is_at_rest(spec):
            # Ignores what was learned of its needs: it is already loaded there.
            demand, addresses = demand_of(spec), sorted(model.held)
            servers = [seen.servers[address] for address in addresses]
            if all(s.answered and demand.met_by_server(s.joined.info) for s in servers):
                settled = Settled(spec, addresses, model.reported_bytes(spec))
                done[spec.model_id] = SettledModel(settled, model, report_ready(spec, model.held))
    return done


# Placement


def _assign(
    specs: Sequence[ModelSpec],
    current: Mapping[str, Sequence[str]],
    awaited: Mapping[str, Awaited],
    done: Mapping[str, SettledModel],
    seen: Seen,
    now: float,
) -> Assignment:
    return assign(
        [_to_place(spec, seen.model(spec.model_id), awaited) for spec in specs],
        [server.joined for server in seen.servers.values() if server.answered],
        current,
        {
            spec.model_id: failed
            for spec in specs
            if (failed := _failed(spec, seen.model(spec.model_id), now))
        },
        reported_bytes={s.model_id: seen.model(s.model_id).reported_bytes(s) for s in specs},
        least_bytes={s.model_id: seen.model(s.model_id).least_bytes(s) for s in specs},
        settled=[one.settled for one in done.values()],
        learned={s.model_id: need for s in specs if (need := seen.need(s)) is not None},
        refused={
            spec.model_id: refusals
            for spec in specs
            if (refusals := seen.model(spec.model_id).refusals(spec))
        },
    )


def _to_place(spec: ModelSpec, model: SeenModel, awaited: Mapping[str, Awaited]) -> ModelSpec:
    """The spec with only the replicas that need a server now."""
    if spec.model_id in awaited:
        return replace(spec, replicas=spec.replicas - awaited[spec.model_id].replicas)
    # A lone replica of an older version keeps serving until its successor is ready.
    ready = model.ready() if spec.replicas == 1 else []
    alone = bool(ready) and not any(model.has_current(address, spec) for address in ready)
    return replace(spec, replicas=2) if alone else spec


def _canaries(
    specs: Sequence[ModelSpec], assignment: Assignment, seen: Seen
) -> dict[str, Mapping[str, ModelSpec]]:
    return {
        spec.model_id: canary_targets(
            spec, seen.model(spec.model_id), assignment.addresses[spec.model_id]
        )
        for spec in specs
        if spec.canary is not None
    }


def _awaited(
    specs: Sequence[ModelSpec], current: Mapping[str, Sequence[str]], seen: Seen
) -> dict[str, Awaited]:
    """By model, the servers that may hold its missing replicas and have not answered yet."""
    groups: dict[frozenset[str], list[JoinedServer]] = {}
    for server in seen.servers.values():
        if server.may_hold and not server.answered:
            groups.setdefault(server.may_hold, []).append(server.joined)
    awaited: dict[str, Awaited] = {}
    for may_hold, silent in groups.items():
        demands = {spec.model_id: demand_of(spec, seen.need(spec)) for spec in specs}
        fleet = Fleet(silent, demands.values())
        for spec in specs:
            missing = spec.replicas - len(current[spec.model_id])
            there = spec.model_id in may_hold
            servers = fleet.addresses(demands[spec.model_id]) if there else ()
            if missing > 0 and servers:
                awaited[spec.model_id] = Awaited(min(missing, len(servers)), servers)
    return awaited


def _current(spec: ModelSpec, model: SeenModel, now: float) -> list[str]:
    """The servers that have the model or are about to, those most worth keeping first."""
    ranked = [
        (rank, address)
        for address in {*model.held, *model.pending, *model.failures}
        if (rank := _rank(spec, model, address, now)) is not None
    ]
    return [address for _, address in sorted(ranked)]


def _rank(spec: ModelSpec, model: SeenModel, address: str, now: float) -> int | None:
    servable = model.held.get(address)
    if model.is_leaving(address):
        return None
    if servable is not None and servable.status is ServableStatus.LOADED:
        return 0 if is_wanted(spec, model, address) else 1
    loading = servable is not None and servable.status is ServableStatus.LOADING
    if loading or model.load(address) is not None:
        return 2
    if model.refusal(address, spec) is not None:
        return None  # not enough memory there: choose a server anew
    held = servable is not None and servable.status in HELD
    waiting = any(waits(model.failure(address, each), now) for each in variants(spec))
    return 3 if held or waiting else None


def _failed(spec: ModelSpec, model: SeenModel, now: float) -> frozenset[str]:
    """Servers where this version failed to load, unless the retry there is being awaited."""
    failures = {address: model.failure(address, spec) for address in model.failures}
    return frozenset(
        address
        for address, failure in failures.items()
        if failure is not None
        and not failure.retrying
        and (failure.need is not None or not waits(failure, now))
    )


# Actions


def _loads(
    wanted: CellState,
    specs: Sequence[ModelSpec],
    assignment: Assignment,
    seen: Seen,
    now: float,
    going: Sequence[UnloadAction],
) -> tuple[list[LoadAction], dict[tuple[str, str], str]]:
    """The loads to start now, and for loads that must wait, the models in their way."""
    # One action at a time per server: the memory a load may use depends on those before it.
    busy = {unload.address for unload in going} | {
        address
        for (address, _), actions in seen.pending.items()
        if any(not isinstance(action, UpdateAcls) for action in actions)
    }
    loads: list[LoadAction] = []
    crowded: dict[tuple[str, str], str] = {}
    for spec in specs:
        model = seen.model(spec.model_id)
        for address in assignment.addresses[spec.model_id]:
            if address in model.held or address in busy:
                continue
            target = assignment.target(spec, address)
            if waits(model.failure(address, target), now):
                continue
            if others := _in_the_way(spec, address, wanted, assignment, seen):
                crowded[address, spec.model_id] = others
                continue
            busy.add(address)
            loads.append(LoadAction(address, target))
    return loads, crowded


def _in_the_way(
    spec: ModelSpec, address: str, wanted: CellState, assignment: Assignment, seen: Seen
) -> str:
    """Models that must leave memory before this one can be loaded; "" if none."""
    server = seen.servers[address].joined
    devices, total = devices_of(server.info), server.info.memory_total
    need = assignment.needs.of(spec, devices)
    if not total or need is None:
        return ""
    held = {s.model_id: s.memory for s in server.servables if s.status in _IN_MEMORY}
    for model_id in held.keys() & wanted.models.keys():
        held[model_id] = (
            held[model_id] or assignment.needs.of(wanted.models[model_id], devices) or 0
        )
    return listing(sorted(held)) if need > total - sum(held.values()) else ""


def _pushes(specs: Sequence[ModelSpec], seen: Seen, now: float) -> list[UpdateAcls]:
    pushes: list[UpdateAcls] = []
    for spec in specs:
        model = seen.model(spec.model_id)
        for address, servable in sorted(model.held.items()):
            if (
                servable.acls != spec.acls
                and model.has_stale_acls(address, spec)
                and address not in model.pending
                and not model.push_waits(address, spec, now)
            ):
                pushes.append(UpdateAcls(address, spec))
    return pushes


@dataclass(frozen=True, slots=True)
class Outlook:
    """The state is the newest; plan and seen are from the last round."""

    state: CellState
    plan: CellActions
    seen: Seen


def _unloads(
    wanted: CellState,
    assignment: Assignment,
    awaited: Container[str],
    done: Container[str],
    seen: Seen,
    now: float,
) -> list[UnloadAction]:
    """Every replica to unload now, by server.

    `awaited` models may have more replicas than are seen; models that are `done` need nothing.
    """
    going: list[UnloadAction] = []
    for model_id, model in seen.models.items():
        if model_id in done:
            continue
        places = _held(model)
        spec = wanted.models.get(model_id)
        if spec is None:
            why = "it is no longer published"
            going += [UnloadAction(a, model_id, why) for a in places if not model.is_own(a)]
            continue
        assigned = assignment.addresses[model_id]
        rolled = None if model_id in awaited else _next_to_roll(spec, seen, assignment)
        for address in places:
            if address in assigned:
                target = assignment.target(spec, address)
                why = _why_reload(target, model, address, rolled, now)
            else:
                why = "" if model.is_own(address) else _why_leave(model, address, assigned)
            if why:
                going.append(UnloadAction(address, model_id, why))
    return sorted(going, key=lambda unload: (unload.address, unload.model_id))


def _held(model: SeenModel) -> Iterable[str]:
    """Servers that hold or are loading the model and are not unloading it already."""
    held = [address for address, servable in model.held.items() if servable.status in HELD]
    if not model.pending:
        return held
    loading = [address for address in model.pending if model.load(address)]
    return [address for address in {*held, *loading} if not model.is_leaving(address)]


def _why_reload(
    spec: ModelSpec, model: SeenModel, address: str, rolled: str | None, now: float
) -> str:
    """Why a replica that stays must be reloaded; "" if it need not, or must wait."""
    servable, load = model.held.get(address), model.load(address)
    if load is not None:
        return "" if load.spec.version == spec.version else "it was updated while loading"
    if servable is None:
        return ""
    if servable.status is ServableStatus.LOADED:
        return "it was updated" if address == rolled else ""
    if not is_current(servable, spec):
        return "it was updated"
    failed = servable.status is ServableStatus.FAILED
    return (
        "to retry the load that failed"
        if failed and not waits(model.failure(address, spec), now)
        else ""
    )


def _next_to_roll(spec: ModelSpec, seen: Seen, assignment: Assignment) -> str | None:
    """The ready replica to reload for an update: one, and only while all others are ready."""
    model, need = seen.model(spec.model_id), seen.need(spec)
    assigned = assignment.addresses[spec.model_id]
    outdated = [a for a in assigned if not model.has_current(a, assignment.target(spec, a))]
    if spec.canary is not None and len(assigned) < spec.replicas:
        # A canary is not worth a replica while others are missing.
        outdated = [a for a in outdated if not is_wanted(spec, model, a)]
    if need is not None:  # after a refusal, only reload where the new version fits
        outdated = [a for a in outdated if _has_room(seen.servers[a].joined, spec, need)]
    if not outdated or not all(model.is_ready(address) for address in assigned):
        return None
    return min(outdated)


def _has_room(server: JoinedServer, spec: ModelSpec, need: Need) -> bool:
    """True if the server could hold the new version once this model's own memory is free."""
    others = sum(s.memory for s in server.servables if s.model_id != spec.model_id)
    total = server.info.memory_total
    return devices_of(server.info) >= need.devices and (not total or total - others >= need.memory)


def _why_leave(model: SeenModel, address: str, assigned: Sequence[str]) -> str:
    """Why a replica leaves an unassigned server; "" while it is the last ready one."""
    ready = any(model.is_ready(other) for other in assigned)
    if assigned and not ready and model.is_ready(address):
        return ""
    if (servable := model.held.get(address)) is not None and servable.need is not None:
        return "this server has too little memory for it"
    return "it is no longer wanted on this server"
