"""Whether the cell has become what its log says: one leader, every replica, nothing else."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager

from admin_server.ledger.ledger import Entry, Ledger
from admin_server.ledger.state import CellState
from sax.errors import SaxError
from sax.storage.object_store import open_store
from sax.types import PublishedModel, ServableStatus, ServerStatus
from tests.simulation.history import Wrong
from tests.stores.place import Place
from tests.tools.chaos.cell import CELL, SNAPSHOT_EVERY, RealCell

_LOOK_S = 0.5


async def converge(cell: RealCell, calm_s: float) -> tuple[CellState, list[Entry]]:
    """The state and the whole log, once everything is as they say. Raises Wrong."""
    loop = asyncio.get_running_loop()
    until_s, why = loop.time() + calm_s, ""
    while loop.time() < until_s:
        for child in cell.children:
            child.check()
        leaders = await cell.leaders()
        named = await asyncio.gather(*map(cell.leader_by, cell.admins))
        why = f"{len(leaders)} admin servers lead, and all of them say that {named} do"
        if len(leaders) == 1 and set(named) == {leaders[0][0].address}:
            state, entries = await read_log(cell.store.place)
            why = _why_not(state, leaders[0][1]) or await _why_not_loaded(cell, state)
            if not why:
                return state, entries
        await asyncio.sleep(_LOOK_S)
    raise Wrong(f"not converged after {calm_s:g} s of calm: {why}")


async def read_log(place: Place) -> tuple[CellState, list[Entry]]:
    """As an auditor reads it, archive included."""
    with _environment(place.env):
        store = open_store(place.url)
    ledger = await Ledger.open(store, CELL, snapshot_every=SNAPSHOT_EVERY)
    entries = await ledger.entries(before=0, limit=1 << 30)
    return ledger.state, entries[::-1]


def _why_not(state: CellState, told: list[PublishedModel]) -> str:
    """What the leader tells otherwise than the log; "" if nothing."""
    published = {model.spec.model_id: model for model in told}
    if {model_id: model.spec for model_id, model in published.items()} != dict(state.models):
        return f"the leader has {published}, and the log {state.models}"
    for model_id, spec in state.models.items():
        ready = published[model_id].ready_replicas
        if ready != spec.replicas:
            reasons = [replica.reason for replica in published[model_id].replicas]
            return f"{model_id}: {ready} of {spec.replicas} replicas are ready: {reasons}"
    return ""


async def _why_not_loaded(cell: RealCell, state: CellState) -> str:
    """What model servers hold otherwise than the log; "" if nothing."""
    try:
        answers = await asyncio.gather(*map(cell.status_of, cell.servers))
    except SaxError as exc:
        return f"a model server does not answer: {exc.text}"
    for server, status in zip(cell.servers, answers, strict=True):
        if why := _why_not_held(state, status):
            return f"{server.address} {why}"
    for model_id, spec in state.models.items():
        held = [status for status in answers for x in status.servables if x.model_id == model_id]
        if len(held) != spec.replicas:
            return f"{model_id} is on {len(held)} servers, wanted are {spec.replicas}"
    return ""


def _why_not_held(state: CellState, status: ServerStatus) -> str:
    for held in status.servables:
        spec = state.models.get(held.model_id)
        if spec is None:
            return f"holds {held.model_id}, which is not published"
        if (held.status, held.version) != (ServableStatus.LOADED, spec.version):
            return f"holds {held}, wanted is {spec}"
    return ""


@contextmanager
def _environment(env: Mapping[str, str]) -> Generator[None]:
    before = {name: os.environ.get(name) for name in env}
    os.environ.update(env)
    try:
        yield
    finally:
        for name, text in before.items():
            if text is None:
                del os.environ[name]
            else:
                os.environ[name] = text
