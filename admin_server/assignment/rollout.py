"""Replicas to unload: those no longer wanted, and those that must be reloaded.

A model whose last update changes what is loaded is rolled: one replica at a time, and never the
last ready one before another has the new version; it is reloaded in place only if no second server
can take the model. While the new version fails to load, nothing more is unloaded.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from admin_server.assignment.assigner import Assignment
from admin_server.assignment.canaries import is_wanted
from admin_server.assignment.seen import HELD, Seen, SeenModel, UnloadAction, is_current, waits
from admin_server.ledger.placement import devices_of
from admin_server.ledger.state import CellState
from sax.need import Need
from sax.types import JoinedServer, ModelSpec, ServableStatus


def unloads(
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
