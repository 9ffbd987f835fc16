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

from admin_server.assigner import describe_paths, serves
from admin_server.autoscaler import ScalingTiming
from admin_server.demand import Prospect, prospect
from admin_server.ledger import Ledger
from admin_server.modelets import Modelets
from admin_server.notice import Notice
from admin_server.plan import Plan
from admin_server.reconciler import Reconciler, Timing
from admin_server.scaler import Scaler
from admin_server.seen import Seen
from admin_server.state import (
    CellState,
    Record,
    check_cell,
    publish_record,
    unpublish_record,
    update_record,
)
from admin_server.watch import Delta, WatchSet
from sax import names
from sax.config import check_address
from sax.errors import Cancelled, ModelPathNotFound
from sax.types import (
    JoinedServer,
    ModelSpec,
    PublishedModel,
    ReplicaStatus,
    ServableStatus,
    ServerInfo,
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
        scaling: ScalingTiming | None = None,
        jitter: random.Random | None = None,
    ) -> None:
        timing = timing or Timing()
        self.ledger = ledger
        self.id = uuid.uuid4().hex  # a client that knows another id knows nothing of ours
        self._clock = clock
        self._notice = Notice()
        self._plan = Plan((), {})
        self._seen = Seen()
        self._watched: dict[str, WatchSet] = {}
        self._next_base = 0
        self._restored = frozenset(ledger.state.models)
        self._settled_at_s = clock() + timing.settle_s
        # A server that was away for as long as it may be still brings its replicas.
        adopts_until_s = self._settled_at_s + timing.silence_s
        self.scaler = Scaler(scaling or ScalingTiming(), self._restored, adopts_until_s)
        self.reconciler = Reconciler(
            modelets,
            lambda: ledger.state,
            self._on_plan,
            self.scaler,
            clock,
            timing=timing,
            jitter=jitter or random.Random(),
        )

    # What operators ask for; durable on return

    async def publish(self, spec: ModelSpec) -> None:
        """Raises InvalidRequest and its kin, ModelExists, ModelPathNotFound, AdminUnavailable."""
        version, at_s = uuid.uuid4().hex, self._clock()

        def make(state: CellState) -> Record:
            record = publish_record(state, spec, version=version, at_s=at_s)
            self._check_path(spec.model_path)
            return record

        await self._commit(make)

    async def update(self, spec: ModelSpec) -> None:
        """Raises InvalidRequest and its kin, ModelNotFound, AdminUnavailable."""
        version, at_s = uuid.uuid4().hex, self._clock()
        await self._commit(lambda state: update_record(state, spec, version=version, at_s=at_s))

    async def unpublish(self, model_id: str) -> None:
        """Raises InvalidName, ModelNotFound, AdminUnavailable."""
        at_s = self._clock()
        await self._commit(lambda state: unpublish_record(state, model_id, at_s=at_s))

    # What servers report

    def join(self, info: ServerInfo) -> None:
        """A server has joined or beats. Raises InvalidRequest for an address that is none."""
        check_address(info.address, "address")
        if info.data_address:
            check_address(info.data_address, "data_address")
        self.reconciler.join(info)

    # What clients are told

    def find(self, model_id: str) -> PublishedModel:
        """One model and its replicas. Raises InvalidName, ModelNotFound."""
        return self._describe(self.ledger.state.find(model_id))

    def models(self) -> list[PublishedModel]:
        """All models, by name."""
        return [self._describe(spec) for _, spec in sorted(self.ledger.state.models.items())]

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

    def demand(self, model_id: str, waiting: int, caller: str) -> Prospect:
        """A caller holds so many requests of a model for want of a replica.

        Raises InvalidRequest and its kin, ModelNotFound.
        """
        spec = self.ledger.state.find(model_id)
        self.scaler.tell(spec, caller, waiting, self._clock())
        wanted = self.scaler.wanted(spec)
        if waiting and not wanted:
            self.reconciler.wake()
        return prospect(spec, wanted, self._plan.models.get(model_id))

    def held(self) -> dict[str, int]:
        """By model, how many requests wait at clients for want of a replica."""
        return self.scaler.demand.all_held(self._clock())

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
        if not waiting or spec is None:
            return False
        # An autoscaled model may have none; that is known when its servers have had their time.
        return self._ready(spec) < max(self.scaler.wanted(spec), 1 if spec.autoscaling else 0)

    def _ready(self, spec: ModelSpec) -> int:
        report = self._plan.models.get(spec.model_id)
        return report.current if report is not None and report.version == spec.version else 0

    def _describe(self, spec: ModelSpec) -> PublishedModel:
        report = self._plan.models.get(spec.model_id)
        wanted, why = self.scaler.wanted(spec), self.scaler.reason(spec)
        if report is None:
            waiting = ReplicaStatus("", ServableStatus.NONE, "published a moment ago")
            return PublishedModel(spec, (waiting,) * wanted, (), wanted, why)
        return PublishedModel(spec, report.replicas, self._methods(spec.model_id), wanted, why)

    def _methods(self, model_id: str) -> tuple[str, ...]:
        """What the servers that have loaded the model say it serves."""
        names = {
            name
            for server in self.servers()
            for servable in server.servables
            if servable.model_id == model_id
            for name in servable.methods
        }
        return tuple(sorted(names))
