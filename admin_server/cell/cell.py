"""One cell, as its leader runs it: connects the ledger, the reconciler and the watch sets."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from admin_server.assignment.autoscaler import ScalingTiming
from admin_server.assignment.canaries import wanted_version
from admin_server.assignment.plan import CellActions, Outlook
from admin_server.assignment.report import with_notes
from admin_server.assignment.seen import Seen
from admin_server.assignment.servers import known_paths
from admin_server.cell.canaries import Canaries
from admin_server.cell.disputes import Disputes
from admin_server.cell.modelets import (
    Modelets,
    WeightsOfReplicas,
    check_joining,
    check_spec,
    dial_back,
    unjudged,
)
from admin_server.cell.reconciler import Reconciler, Timing
from admin_server.cell.scaler import Prospect, Scaler, prospect
from admin_server.cell.watch import Delta, Recovery, WatchSets
from admin_server.condition import ChangeSignal
from admin_server.events import CellEvents
from admin_server.ledger import versions
from admin_server.ledger.ledger import Ledger, check_page, event_of
from admin_server.ledger.placement import bare
from admin_server.ledger.records import Record
from admin_server.ledger.state import (
    CellState,
    check_cell,
    check_model_id,
    grant_record,
    publish_record,
    rollback_record,
    unpublish_record,
    update_record,
)
from sax import names
from sax.canary import replicas_with_canary
from sax.errors import (
    Cancelled,
    InvalidRequest,
    ModelPathNotFound,
    NotFound,
    NotLeading,
    SaxError,
    Unavailable,
)
from sax.flags.last_lines import LogLine
from sax.format import describe_paths, shortened
from sax.overrides.saxml_overrides import override_warnings
from sax.types import (
    CellStats,
    Event,
    JoinedServer,
    ModelSpec,
    PublishedModel,
    ReplicaStatus,
    ServableStatus,
    ServerInfo,
    ServerTypeStat,
    Version,
)

if TYPE_CHECKING:
    from admin_server.provisioning.provisioner import Provisioner


class Cell:
    """Takes operators' requests and servers' reports, answers clients. Lives on the event loop."""

    def __init__(
        self,
        ledger: Ledger,
        modelets: Modelets,
        clock: Callable[[], float],
        *,
        timing: Timing | None = None,
        scaling: ScalingTiming | None = None,
        jitter: random.Random | None = None,
        servers: Sequence[ServerInfo] | None = None,
    ) -> None:
        """`servers` are those known to the previous leader; None: any may hold any model."""
        timing = timing or Timing()
        self.ledger = ledger
        self.id = uuid.uuid4().hex  # a client that knows another id starts from the full set
        self.recent_events = CellEvents(clock)
        self._modelets = modelets
        self._clock = clock
        self._notice = ChangeSignal()
        self._plan = CellActions((), {})
        self._seen = Seen()
        self._dismissed = False
        self.provisioner: Provisioner | None = None  # requests machines from Kubernetes
        self._watched = WatchSets()
        restored, settled_at_s = frozenset(ledger.state.models), clock() + timing.settle_s
        self._recovery = Recovery(restored, settled_at_s)
        # A server that was away for as long as allowed still brings its replicas.
        adopts_until_s = settled_at_s + timing.silence_s
        self.scaler = Scaler(scaling or ScalingTiming(), restored, adopts_until_s)
        self.disputes = Disputes(
            modelets, self._still_leads, ledger.deposed.set, clock, self.recent_events
        )
        self.canaries = Canaries(ledger, self._checked, self._commit, clock)
        self.weights = WeightsOfReplicas(self.find, modelets)
        self.reconciler = Reconciler(
            modelets,
            lambda: ledger.state,
            self._on_plan,
            self.scaler,
            clock,
            on_refused=self.disputes.refused,
            timing=timing,
            jitter=jitter or random.Random(),
            events=self.recent_events,
        )
        if servers is not None:
            self.reconciler.restore(servers)

    def dismiss(self) -> None:
        """Another server leads this cell now: wake all waiters, so that they raise NotLeading."""
        self._dismissed = True
        self._notice.post_all()

    # Changes by operators: durable on return. `by` is the caller's name, for the audit log

    async def publish(self, spec: ModelSpec, *, by: str = "") -> None:
        """Raises InvalidRequest or a subclass, CheckpointError for a checkpoint that no server can
        fetch, ModelExists, ModelPathNotFound, AdminUnavailable.
        """
        spec = await self._checked(spec)
        version, at_s = uuid.uuid4().hex, self._clock()

        def make(state: CellState) -> Record:
            record = publish_record(state, spec, version=version, at_s=at_s, by=by)
            self._check_path(spec.model_path)
            return record

        await self._commit(make)

    async def update(self, spec: ModelSpec, *, by: str = "") -> None:
        """Raises InvalidRequest or a subclass, CheckpointError for a checkpoint that no server can
        fetch, ModelNotFound, StaleRevision, AdminUnavailable.
        """
        old = self.ledger.state.models.get(spec.model_id)
        if old is None or _loaded_from(old) != _loaded_from(spec):
            spec = await self._checked(spec, old)
        version, at_s = uuid.uuid4().hex, self._clock()
        await self._commit(
            lambda state: update_record(state, spec, version=version, at_s=at_s, by=by)
        )

    async def rollback(self, model_id: str, version: str = "", *, by: str = "") -> str:
        """Go back to a version ("": the one before the current); returns the version now wanted.

        Raises InvalidRequest and its subclasses, ModelNotFound, NotFound, AdminUnavailable.
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

    async def grant(self, acl: str, *, by: str = "") -> None:
        """Let these, too, do everything in this cell; "" is nobody beside --admin_acl.

        Raises InvalidRequest, AdminUnavailable.
        """
        at_s = self._clock()
        await self._commit(lambda state: grant_record(state, acl, at_s=at_s, by=by))

    # Reads by operators

    def versions(self, model_id: str) -> tuple[Version, ...]:
        """Versions the model can go back to, newest first. Raises InvalidName, ModelNotFound."""
        state = self.ledger.state
        return versions.listed(state.versions.get(model_id, ()), state.find(model_id))

    async def events(self, model_id: str = "", before: int = 0, limit: int = 0) -> list[Event]:
        """The audit log, newest first; also of a model that is no longer published.

        Raises InvalidName, NotFound for another cell, InvalidRequest for a bad page.
        """
        if model_id:
            check_model_id(self.ledger.state, model_id)
        entries = await self.ledger.entries(before, check_page(before, limit), model_id)
        return [event_of(entry) for entry in entries]

    # Reports by servers

    async def admit(self, info: ServerInfo) -> None:
        """A server joins or sends a heartbeat. A new one is asked at the address it gives first.

        Raises InvalidRequest for impossible values or another server's address, Unavailable if
        nobody answers there.
        """
        check_joining(info)
        if self.reconciler.expects(info):
            await self._dial_back(info)
        self.reconciler.join(info)

    async def _dial_back(self, info: ServerInfo) -> None:
        known = self.reconciler.has(info.address)
        try:
            await dial_back(self._modelets, info)
        except SaxError as exc:
            if not known:
                await self._modelets.close(info.address)
            elif isinstance(exc, Unavailable):
                return  # it was restarted, and the connection to it is not there again yet
            raise

    def join(self, info: ServerInfo) -> None:
        """`admit`, of a server that is known to be there."""
        check_joining(info)
        self.reconciler.join(info)

    def leave(self, address: str, incarnation: str) -> None:
        """A server shuts down: clients are told at once; what it is doing ends by itself."""
        self.reconciler.leave(address, incarnation)

    # Reads by clients

    def find(self, model_id: str) -> PublishedModel:
        """One model and its replicas. Raises InvalidName, ModelNotFound."""
        spec = self.ledger.state.find(model_id)
        return self._describe(spec)

    def models(self) -> list[PublishedModel]:
        return [self._describe(spec) for _, spec in sorted(self.ledger.state.models.items())]

    def infos(self) -> tuple[ServerInfo, ...]:
        return self.reconciler.infos()

    @property
    def knows_servers(self) -> bool:
        """False in the first seconds of a cell that was not told which servers there are."""
        return self.reconciler.acting

    def servers(self) -> list[JoinedServer]:
        return [server.joined for _, server in sorted(self._seen.servers.items())]

    async def log(self, address: str) -> list[LogLine]:
        """Last lines that a joined model server logged. Raises NotFound, ReplicaLost."""
        if address not in self._seen.servers:
            raise NotFound(f"no model server {shortened(address)}: see sax status", param="server")
        return await self._modelets.log(address)

    def troubles(self) -> dict[str, str]:
        """By address, why a server does not answer now."""
        return {a: server.trouble for a, server in self._seen.servers.items() if server.trouble}

    def warnings(self) -> Sequence[str]:
        """Conditions that need an operator, but refuse no change yet."""
        return self.disputes.warnings()

    def check_name(self, name: str) -> None:
        """Raises InvalidName, NotFound unless the name is "" or this cell's."""
        if name:
            check_cell(self.ledger.state, name)

    def stats(self, model_id: str) -> CellStats:
        """Stats of all servers ("" or this cell), or of those where this model is ready."""
        servers = self.servers()
        if model_id.count("/") == 2:
            check_cell(self.ledger.state, model_id)
        elif model_id:
            self.ledger.state.find(model_id)
            report = self._plan.models.get(model_id)
            ready = report.ready if report else frozenset[str]()
            servers = [server for server in servers if server.info.address in ready]
        infos = [server.info for server in servers]
        types = Counter((info.chip_type, info.chip_topology) for info in infos)
        return CellStats(
            tuple(ServerTypeStat(*kind, count) for kind, count in sorted(types.items())),
            Counter(path for info in infos for path in set(info.model_paths)),
        )

    async def watch(
        self, model_id: str, admin_server_id: str, seqno: int, timeout_s: float
    ) -> Delta:
        """Changes of the ready replicas since `seqno`; empty if there are none within the timeout.

        Raises InvalidName, ModelNotFound, InvalidRequest for a number below 0, as Saxml.
        """
        if seqno < 0:
            raise InvalidRequest(
                f"seqno {seqno} is below 0: send 0 at first, then next_seqno of the reply before",
                param="seqno",
            )
        known = seqno if admin_server_id == self.id else None
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            event = self._notice.next(model_id)
            self._check_leading()
            self.ledger.state.find(model_id)
            delta = self._watched.since(model_id, known)
            withheld = self._recovery.withholds(model_id, self._clock())
            if (delta.full or delta.changes) and not withheld:
                return delta
            try:
                async with asyncio.timeout_at(deadline):
                    await event.wait()
            except TimeoutError:
                return delta

    async def wait_for_ready(self, model_id: str, replicas: int) -> None:
        """Return once this many replicas of the currently published version are ready.

        Raises InvalidName, ModelNotFound, or Cancelled if the model is unpublished meanwhile.
        """
        self.ledger.state.find(model_id)
        while model_id in self.ledger.state.models:
            event = self._notice.next(model_id)
            self._check_leading()
            if self._ready(self.ledger.state.models[model_id]) >= replicas:
                return
            await event.wait()
        raise Cancelled(f"{model_id} was unpublished while waiting for its replicas")

    def demand(self, model_id: str, waiting: int, caller: str) -> Prospect:
        """A caller reports how many requests of a model it holds for lack of a replica.

        Raises InvalidRequest and its subclasses, ModelNotFound.
        """
        spec = self.ledger.state.find(model_id)
        self.scaler.report(spec, caller, waiting, self._clock())
        wanted = self.scaler.wanted(spec)
        if waiting and not wanted:
            self.reconciler.wake()
        outlook = prospect(spec, wanted, self._plan.models.get(model_id))
        if outlook.starting or self.provisioner is None or spec.autoscaling is None:
            return outlook
        notes = self.provisioner.notes(model_id)
        reason = "; ".join([outlook.reason, *notes[:1]])
        return Prospect(self.provisioner.is_coming(model_id), reason)

    def held(self) -> dict[str, int]:
        """By model, requests waiting at clients for lack of a replica."""
        return self.scaler.demand.all_held(self._clock())

    def outlook(self) -> Outlook:
        return Outlook(self.ledger.state, self._plan, self._seen)

    # Internals

    async def _checked(self, spec: ModelSpec, old: ModelSpec | None = None) -> ModelSpec:
        infos, silent = self.reconciler.infos(), self.troubles()
        return await check_spec(self._modelets, spec, infos, silent, old)

    async def _still_leads(self) -> bool:
        """Look into the log. Raises StoreUnavailable."""
        await self.ledger.check()
        return not self.ledger.deposed.is_set()

    def _check_leading(self) -> None:
        if self._dismissed:
            raise NotLeading(
                f"this admin server no longer leads {self.ledger.state.cell}; retry", param=""
            )

    async def _commit(self, make: Callable[[CellState], Record | None]) -> None:
        await self.ledger.commit(make)
        self._watched.keep(self.ledger.state.models)
        self.reconciler.wake()
        self._notice.post_all()

    def _check_path(self, model_path: str) -> None:
        """Refuse a path no server here serves; without servers any path is accepted."""
        infos = self.reconciler.infos()
        paths = known_paths(infos)
        if not infos or bare(model_path) in map(bare, paths):
            return
        near = names.nearest(model_path, paths)
        hint = f"near paths: {', '.join(near)}" if near else f"they serve {describe_paths(paths)}"
        raise ModelPathNotFound(
            f"no joined model server serves {model_path}; {hint}", param="model_path"
        )

    def _on_plan(self, plan: CellActions, seen: Seen) -> None:
        """Notify watchers of changes, before the plan is carried out."""
        changed = self._watched.take(plan, self._plan, seen.servers)
        self._plan, self._seen = plan, seen
        self._notice.post(changed)
        if self.provisioner is not None:
            self.provisioner.hear(plan)
        if not self._recovery.over:
            self._recovery.look(seen.servers, self._is_found, self._clock())
            self._notice.post_all()

    def _is_found(self, model_id: str) -> bool:
        spec = self.ledger.state.models.get(model_id)
        if spec is None:
            return True
        # An autoscaled model may rightly have none, but that is only certain after the settle time.
        least = 1 if spec.autoscaling else 0
        return self._ready(spec) >= max(self.scaler.wanted(spec), least)

    def _ready(self, spec: ModelSpec) -> int:
        report = self._plan.models.get(spec.model_id)
        if report is None or report.version != wanted_version(spec):
            return 0
        return report.current

    def _describe(self, spec: ModelSpec) -> PublishedModel:
        report = self._plan.models.get(spec.model_id)
        wanted = replicas_with_canary(self.scaler.wanted(spec), spec.canary)
        why, methods = self.scaler.reason(spec), ()
        if report is None:
            waiting = ReplicaStatus("", ServableStatus.NONE, "published a moment ago")
            replicas = (waiting,) * wanted
        else:
            replicas, methods = report.replicas, self._methods(spec.model_id)
            if self.provisioner is not None and not all(replica.address for replica in replicas):
                replicas = with_notes(replicas, self.provisioner.notes(spec.model_id))
        infos = self.reconciler.infos()
        warnings = (*override_warnings(spec.model_path, spec.overrides), *unjudged(spec, infos))
        at_s = versions.of_spec(self.ledger.state.versions.get(spec.model_id, ()), spec).at_s
        return PublishedModel(
            spec, replicas, methods, wanted, why, warnings=warnings, published_at_s=at_s
        )

    def _methods(self, model_id: str) -> tuple[str, ...]:
        held = self._seen.model(model_id).held.values()
        return tuple(sorted({name for servable in held for name in servable.methods}))


def _loaded_from(spec: ModelSpec) -> tuple[object, ...]:
    return spec.model_path, spec.checkpoint, spec.overrides
