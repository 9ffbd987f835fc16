"""One cell: what operators ask for, what servers report, and what clients are told.

Joins the ledger, the reconciler and the watch sets. Knows nothing of the wire.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from admin_server import versions
from admin_server.assigner import describe_paths, serves
from admin_server.audit import check_page, event_of
from admin_server.happenings import Happenings
from admin_server.ledger import Ledger
from admin_server.limits import check_server
from admin_server.modelets import Modelets
from admin_server.notice import Notice
from admin_server.plan import Plan
from admin_server.reconciler import Reconciler, Timing
from admin_server.records import Record
from admin_server.seen import Seen
from admin_server.state import (
    CellState,
    check_cell,
    check_model_id,
    publish_record,
    rollback_record,
    unpublish_record,
    update_record,
)
from admin_server.watch import Delta, WatchSet
from sax import names
from sax.config import check_address
from sax.errors import Cancelled, ModelPathNotFound
from sax.types import (
    Event,
    JoinedServer,
    ModelSpec,
    PublishedModel,
    ReplicaStatus,
    ServableStatus,
    ServerInfo,
    Version,
)


@dataclass(frozen=True, slots=True)
class Stats:
    """How many servers of each type there are, and how many serve each model path."""

    by_type: Mapping[tuple[str, str], int]  # chip type, chip topology
    by_path: Mapping[str, int]


class Cell:
    """Lives on the event loop."""

    def __init__(
        self,
        ledger: Ledger,
        modelets: Modelets,
        clock: Callable[[], float],
        *,
        timing: Timing | None = None,
        jitter: random.Random | None = None,
    ) -> None:
        timing = timing or Timing()
        self.ledger = ledger
        self.id = uuid.uuid4().hex  # a client that knows another id knows nothing of ours
        self.happenings = Happenings(clock)
        self._clock = clock
        self._notice = Notice()
        self._plan = Plan((), {})
        self._seen = Seen()
        self._watched: dict[str, WatchSet] = {}
        self._next_base = 0
        self._restored = frozenset(ledger.state.models)
        self._settled_at_s = clock() + timing.settle_s
        self.reconciler = Reconciler(
            modelets,
            lambda: ledger.state,
            self._on_plan,
            clock,
            timing=timing,
            jitter=jitter or random.Random(),
            happenings=self.happenings,
        )

    # What operators ask for; durable on return. `by` is who asks, for the audit log

    async def publish(self, spec: ModelSpec, *, by: str = "") -> None:
        """Raises InvalidRequest and its kin, ModelExists, ModelPathNotFound, AdminUnavailable."""
        version, at_s = uuid.uuid4().hex, self._clock()

        def make(state: CellState) -> Record:
            record = publish_record(state, spec, version=version, at_s=at_s, by=by)
            self._check_path(spec.model_path)
            return record

        await self._commit(make)

    async def update(self, spec: ModelSpec, *, by: str = "") -> None:
        """Raises InvalidRequest and its kin, ModelNotFound, StaleRevision, AdminUnavailable."""
        version, at_s = uuid.uuid4().hex, self._clock()
        await self._commit(
            lambda state: update_record(state, spec, version=version, at_s=at_s, by=by)
        )

    async def rollback(self, model_id: str, version: str = "", *, by: str = "") -> str:
        """Go back to a version, "" being the one before the current; gives the one wanted now.

        Raises InvalidRequest and its kin, ModelNotFound, NotFound, AdminUnavailable.
        """
        at_s, wanted = self._clock(), ""

        def make(state: CellState) -> Record | None:
            nonlocal wanted
            record = rollback_record(state, model_id, version, at_s=at_s, by=by)
            wanted = record.version if record else state.models[model_id].version
            return record

        await self._commit(make)
        return wanted

    async def unpublish(self, model_id: str, *, by: str = "") -> None:
        """Raises InvalidName, ModelNotFound, AdminUnavailable."""
        at_s = self._clock()
        await self._commit(lambda state: unpublish_record(state, model_id, at_s=at_s, by=by))

    # What operators read

    def versions(self, model_id: str) -> tuple[Version, ...]:
        """What the model can go back to, the newest first. Raises InvalidName, ModelNotFound."""
        state = self.ledger.state
        return versions.listed(state.versions.get(model_id, ()), state.find(model_id))

    async def events(self, model_id: str = "", before: int = 0, limit: int = 0) -> list[Event]:
        """The log, the newest first; of a model that is not published any more too.

        Raises InvalidName, NotFound for another cell, InvalidRequest for a bad page.
        """
        if model_id:
            check_model_id(self.ledger.state, model_id)
        entries = await self.ledger.entries(before, check_page(before, limit), model_id)
        return [event_of(entry) for entry in entries]

    # What servers report

    def join(self, info: ServerInfo) -> None:
        """A server has joined or beats. Raises InvalidRequest for what cannot be."""
        check_address(info.address, "address")
        if info.data_address:
            check_address(info.data_address, "data_address")
        check_server(info)
        self.reconciler.join(info)

    # What clients are told

    def find(self, model_id: str) -> PublishedModel:
        """One model and its replicas. Raises InvalidName, ModelNotFound."""
        spec = self.ledger.state.find(model_id)
        return self._describe(spec, self._methods().get(model_id, ()))

    def models(self) -> list[PublishedModel]:
        """All models, by name."""
        methods = self._methods()
        published = sorted(self.ledger.state.models.items())
        return [self._describe(spec, methods.get(name, ())) for name, spec in published]

    def servers(self) -> list[JoinedServer]:
        """All joined servers, by address."""
        return [server.joined for _, server in sorted(self._seen.servers.items())]

    def troubles(self) -> dict[str, str]:
        """By address, why a server does not answer now."""
        return {a: server.trouble for a, server in self._seen.servers.items() if server.trouble}

    def listing(self, name: str) -> tuple[list[PublishedModel], list[JoinedServer]]:
        """Of a model, or of this whole cell by its name or "". Raises InvalidName, NotFound."""
        if name.count("/") > 2:
            return [self.find(name)], []
        if name:
            check_cell(self.ledger.state, name)
        return self.models(), self.servers()

    def stats(self, model_id: str) -> Stats:
        """Of all servers ("" or this cell), or of those where this model is ready."""
        servers = self.servers()
        if model_id.count("/") == 2:
            check_cell(self.ledger.state, model_id)
        elif model_id:
            self.ledger.state.find(model_id)
            report = self._plan.models.get(model_id)
            ready = report.ready if report else frozenset[str]()
            servers = [server for server in servers if server.info.address in ready]
        infos = [server.info for server in servers]
        return Stats(
            Counter((info.chip_type, info.chip_topology) for info in infos),
            Counter(path for info in infos for path in set(info.model_paths)),
        )

    async def watch(
        self, model_id: str, admin_server_id: str, seqno: int, timeout_s: float
    ) -> Delta:
        """What changed among the ready replicas since; nothing if nothing does in the time.

        Raises InvalidName, ModelNotFound.
        """
        known = seqno if admin_server_id == self.id else None
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            event = self._notice.next()
            self.ledger.state.find(model_id)
            delta = self._watch_set(model_id).since(known)
            if (delta.full or delta.changes) and not self._withheld(model_id):
                return delta
            try:
                async with asyncio.timeout_at(deadline):
                    await event.wait()
            except TimeoutError:
                return delta

    async def wait_for_ready(self, model_id: str, replicas: int) -> None:
        """Return once so many replicas of what is published now are ready.

        Raises InvalidName, ModelNotFound, or Cancelled when the model is unpublished meanwhile.
        """
        self.ledger.state.find(model_id)
        while model_id in self.ledger.state.models:
            event = self._notice.next()
            if self._ready(self.ledger.state.models[model_id]) >= replicas:
                return
            await event.wait()
        raise Cancelled(f"{model_id} was unpublished while its replicas were waited for")

    # How it fits together

    async def _commit(self, make: Callable[[CellState], Record | None]) -> None:
        await self.ledger.commit(make)
        self._forget_unpublished()
        self.reconciler.wake()
        self._notice.post()

    def _check_path(self, model_path: str) -> None:
        """Refuse what no server here can serve; with no server there is nothing to go by."""
        servers = [JoinedServer(info, 0.0) for info in self.reconciler.infos()]
        if not servers or any(serves(server, model_path) for server in servers):
            return
        paths = sorted({path for server in servers for path in server.info.model_paths})
        near = names.nearest(model_path, paths)
        hint = f"near paths: {', '.join(near)}" if near else f"they serve {describe_paths(servers)}"
        raise ModelPathNotFound(
            f"no joined model server serves {model_path}; {hint}", param="model_path"
        )

    def _on_plan(self, plan: Plan, seen: Seen) -> None:
        """Tell who watches what changed, before the plan is carried out."""
        before = [(report.version, report.current) for report in self._plan.models.values()]
        after = [(report.version, report.current) for report in plan.models.values()]
        changed = before != after
        self._plan, self._seen = plan, seen
        for model_id, report in plan.models.items():
            infos = [seen.servers[address].joined.info for address in report.ready]
            old = self._watch_set(model_id)
            new = old.become(info.data_address or info.address for info in infos)
            self._watched[model_id] = new
            changed = changed or new is not old
        if changed or self._restored:
            self._restored &= frozenset(m for m in self._restored if self._withheld(m))
            self._notice.post()

    def _forget_unpublished(self) -> None:
        for model_id in self._watched.keys() - self.ledger.state.models.keys():
            self._next_base = max(self._next_base, self._watched.pop(model_id).seqno + 1)

    def _watch_set(self, model_id: str) -> WatchSet:
        """A model that comes back starts beyond every number that clients may have of it."""
        if model_id not in self._watched:
            self._watched[model_id] = WatchSet(self._next_base)
        return self._watched[model_id]

    def _withheld(self, model_id: str) -> bool:
        """After a restart, clients keep the replicas they know until ours have joined again."""
        waiting = model_id in self._restored and self._clock() < self._settled_at_s
        spec = self.ledger.state.models.get(model_id)
        return waiting and spec is not None and self._ready(spec) < spec.replicas

    def _ready(self, spec: ModelSpec) -> int:
        report = self._plan.models.get(spec.model_id)
        return report.current if report is not None and report.version == spec.version else 0

    def _describe(self, spec: ModelSpec, methods: tuple[str, ...]) -> PublishedModel:
        report = self._plan.models.get(spec.model_id)
        if report is None:
            waiting = ReplicaStatus("", ServableStatus.NONE, "published a moment ago")
            return PublishedModel(spec, (waiting,) * spec.replicas, wanted=spec.replicas)
        return PublishedModel(spec, report.replicas, methods, wanted=spec.replicas)

    def _methods(self) -> dict[str, tuple[str, ...]]:
        """By model, what the servers that have loaded it say it serves."""
        names: dict[str, set[str]] = {}
        for server in self._seen.servers.values():
            for servable in server.joined.servables:
                names.setdefault(servable.model_id, set()).update(servable.methods)
        return {model_id: tuple(sorted(methods)) for model_id, methods in names.items()}
