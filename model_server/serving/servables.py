"""The models of this server: loaded, loading, failed or unloading.

Drives each model to the state last requested, one load at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from model_server.engine.failure import as_load_error
from model_server.engine.watchdog import OnHang
from model_server.loading.load_thread import LoadThread
from model_server.loading.loaded_model import LoadedModel, Loader
from model_server.serving.admission import tell_of_idle
from model_server.serving.lm_servable import LmServable
from model_server.serving.servable import Servable, StatusEvent, make_servable, transition
from sax import memory_return
from sax.activity import IDLE
from sax.auth.acl import OPEN, MethodAcls, parse_acls
from sax.errors import (
    Cancelled,
    InvalidRequest,
    LoadFailed,
    NotLoaded,
    ReplicaLost,
    SaxError,
    ShuttingDown,
)
from sax.format import shortened
from sax.memory_parts import MemoryParts, memory_table
from sax.need import Need
from sax.types import ModelSpec, Progress, ServableInfo, ServableStatus, static_version
from sax.weights import ReplicaWeights, WeightChange

logger = logging.getLogger(__name__)

_STOP_LOAD_S = 5.0  # loads check for cancellation more often, except during a very long compile


@dataclass(slots=True, eq=False)
class _WantedServable:
    """One model id: the requested state and the actual one."""

    model_id: str
    settled: asyncio.Future[None]  # done once `wish` is fulfilled
    wish: ModelSpec | None = None  # None: unload
    status: ServableStatus = ServableStatus.NONE
    acls: MethodAcls = OPEN  # in force at once, whatever is loaded
    spec: ModelSpec | None = None  # the spec that `status` refers to
    reason: str = ""
    need: Need | None = None  # set if a load failed for lack of memory
    progress: Progress | None = None
    load: LoadThread | None = None
    servable: Servable | None = None
    task: asyncio.Task[None] | None = field(default=None)


class Servables:
    """All models of this server. Runs on the event loop."""

    def __init__(self, loader: Loader, *, drain_s: float = 20.0) -> None:
        self._loader = loader
        self.memory_total = 0  # bytes of this server, for tables; 0: unknown
        self._drain_s = drain_s
        self._entries: dict[str, _WantedServable] = {}
        self._one_load = asyncio.Lock()
        self._closing = False
        self.on_hang: OnHang | None = None  # of the models loaded from then on

    async def load(self, spec: ModelSpec) -> None:
        """Return once the model is LOADED; raise the reason if it fails.

        Loading a model that is loaded (or loading) joins that load; another version replaces it.
        The load continues if the caller goes away. ACLs apply at once.
        """
        acls = parse_acls(spec.acls)
        if self._closing:
            raise ShuttingDown("this model server is shutting down and loads no models")
        entry = self._entries.get(spec.model_id)
        wanted = entry is not None and _same(entry.wish, spec)
        if entry is None:
            entry = _WantedServable(spec.model_id, asyncio.get_running_loop().create_future())
            self._entries[spec.model_id] = entry
        entry.acls = acls
        if not wanted or entry.status is ServableStatus.FAILED:
            self._wish(entry, spec)
        await asyncio.shield(entry.settled)

    async def unload(self, model_id: str) -> None:
        """Return once the model is gone; at once if it is not here."""
        entry = self._entries.get(model_id)
        if entry is None:
            return
        if entry.wish is not None:
            self._wish(entry, None)
        await asyncio.shield(entry.settled)

    def get(self, model_id: str) -> Servable:
        """Return the servable for this model. Raises NotLoaded."""
        self._notice_failures()
        entry = self._entries.get(model_id)
        if entry is None or entry.servable is None or entry.status is not ServableStatus.LOADED:
            raise NotLoaded(self._not_loaded(model_id, entry), param="model")
        if entry.servable.weights and entry.servable.weights.asleep:
            raise NotLoaded(f"{model_id} is asleep here: wake it (`sax wake {model_id}`)")
        return entry.servable

    async def change_weights(self, change: WeightChange) -> ReplicaWeights:
        """Change a language model's weights, also while it sleeps.

        Raises InvalidRequest for other models, NotLoaded, and as `WeightChanges.carry_out`.
        """
        entry = self._entries.get(change.model_id)
        servable = None if entry is None else entry.servable
        if servable is None or servable.failure:
            servable = self.get(change.model_id)
        if servable.weights is None:
            raise InvalidRequest(
                f"{change.model_id} is {servable.kind}, whose weights do not change in place: "
                "publish another checkpoint with `sax update`",
                param="model_id",
            )
        if servable.weights.model_id != servable.model_id:
            raise InvalidRequest(
                f"{change.model_id} is {servable.kind}: change the weights of its base, "
                f"{servable.weights.model_id}, or publish the adapter anew",
                param="model_id",
            )
        return await servable.weights.carry_out(change)

    def loaded(self) -> Iterator[Servable]:
        """Every servable in memory, including draining ones. Thread-safe."""
        return (e.servable for e in list(self._entries.values()) if e.servable is not None)

    def language_models(self) -> Iterator[LmServable]:
        """Those of `loaded` that generate, adapters included. Thread-safe."""
        return (each for each in self.loaded() if isinstance(each, LmServable))

    def loading(self) -> tuple[str, ...]:
        """Ids of the models being loaded. Thread-safe."""
        entries = list(self._entries.values())
        return tuple(e.model_id for e in entries if e.status is ServableStatus.LOADING)

    def spec(self, model_id: str) -> ModelSpec:
        """Return the spec last requested for this model. Raises NotLoaded."""
        entry = self._entries.get(model_id)
        if entry is None or entry.wish is None:
            raise NotLoaded(self._not_loaded(model_id, entry), param="model")
        return entry.wish

    def has(self, model_id: str) -> bool:
        """Return True if the model is loaded, or about to be."""
        self._notice_failures()
        entry = self._entries.get(model_id)
        failed = entry is not None and entry.status is ServableStatus.FAILED
        return entry is not None and entry.wish is not None and not failed

    def version(self, model_id: str) -> str:
        """Return the version of the model that is loaded; "" for one that is not, or has none."""
        entry = self._entries.get(model_id)
        return "" if entry is None or entry.spec is None else entry.spec.version

    def acls(self, model_id: str) -> MethodAcls:
        """Return the ACLs of its methods; open for a model that is not here."""
        entry = self._entries.get(model_id)
        return OPEN if entry is None else entry.acls

    def set_acls(self, model_id: str, texts: Mapping[str, str]) -> None:
        """Apply ACLs from the next request on; running ones may end.

        Raises InvalidRequest, NotLoaded.
        """
        acls = parse_acls(texts)
        entry = self._entries.get(model_id)
        if entry is None or entry.wish is None:
            raise NotLoaded(self._not_loaded(model_id, entry), param="model")
        entry.acls = acls
        entry.wish = replace(entry.wish, acls=dict(texts))
        tell_of_idle(model_id, acls, entry.servable.methods if entry.servable else ())

    def infos(self) -> tuple[ServableInfo, ...]:
        self._notice_failures()
        return tuple(_info(entry) for entry in self._entries.values())

    def holds_own(self, spec: ModelSpec) -> bool:
        """Return True if this is a model that the server's own flags named."""
        entry = self._entries.get(spec.model_id)
        return entry is not None and is_own(entry.wish) and _same(entry.wish, spec)

    @property
    def dormant(self) -> bool:
        """True if language models are loaded and none has the islands to compute."""
        computing = [each.computes for each in self.language_models()]
        return bool(computing) and not any(computing)

    def lose(self, error: ReplicaLost) -> None:
        """Fail everyone waiting for tokens or a load: a host of this replica is lost."""
        self._closing = True
        for entry in self._entries.values():
            if not entry.settled.done():
                _settle(entry.settled, error)
        for servable in self.language_models():
            servable.lose(error)

    @property
    def memory_used(self) -> int:
        """Bytes of all loaded models."""
        return sum(servable.memory for servable in self.loaded())

    def memory_table(self) -> str:
        """Return the plan of the models in memory as a table. Thread-safe."""
        models = [(each.model_id, each.parts) for each in self.loaded()]
        return memory_table(models, total=self.memory_total)

    async def close(self, *, drain_s: float | None = None) -> None:
        """Unload everything and refuse new loads; a load that does not stop is abandoned."""
        self._closing = True
        if drain_s is not None:
            self._drain_s = drain_s
        unloads = [asyncio.create_task(self.unload(model_id)) for model_id in self._entries]
        if unloads:
            _, stuck = await asyncio.wait(unloads, timeout=self._drain_s + _STOP_LOAD_S)
            for unload in stuck:
                logger.warning("a load does not stop; abandoning it")
                unload.cancel()

    # State of one entry: the last wish wins

    def _wish(self, entry: _WantedServable, spec: ModelSpec | None) -> None:
        if not entry.settled.done():
            _settle(
                entry.settled, Cancelled(f"a later load or unload of {entry.model_id} replaced it")
            )
        entry.wish = spec
        entry.settled = asyncio.get_running_loop().create_future()
        if entry.status in (ServableStatus.LOADING, ServableStatus.LOADED):
            self._step(entry, StatusEvent.UNLOAD)
        if entry.load is not None:
            entry.load.cancel()
        self._start(entry)

    def _start(self, entry: _WantedServable) -> None:
        if entry.task is None or entry.task.done():
            entry.task = asyncio.create_task(self._follow(entry))

    def _notice_failures(self) -> None:
        """Mark models whose engine stopped as FAILED, and free their memory."""
        for entry in self._entries.values():
            loaded = entry.status is ServableStatus.LOADED and entry.servable
            if loaded and (failure := loaded.failure):
                self._step(entry, StatusEvent.FAILED)
                entry.reason = failure
                self._start(entry)

    async def _follow(self, entry: _WantedServable) -> None:
        """Free what failed, then fulfil wishes until none is open."""
        if entry.status is ServableStatus.FAILED:
            await self._free(entry)
        while not entry.settled.done():
            settled, wish = entry.settled, entry.wish
            error = await self._fulfil(entry, wish)
            if not settled.done():
                _settle(settled, error)
        if entry.wish is None:
            self._entries.pop(entry.model_id, None)

    async def _fulfil(self, entry: _WantedServable, wish: ModelSpec | None) -> SaxError | None:
        await self._free(entry)
        if entry.status is ServableStatus.UNLOADING:
            self._step(entry, StatusEvent.UNLOADED)
        if wish is None:
            self._step(entry, StatusEvent.UNLOAD)
            return None
        return await self._load(entry, wish)

    async def _free(self, entry: _WantedServable) -> None:
        if entry.servable is not None:
            try:
                await entry.servable.close(self._drain_s)
            except Exception:  # callers of unload must not wait forever
                logger.exception("the memory of %s may not be free", entry.model_id)
            entry.servable = None
            memory_return.soon()
            logger.info("unloaded model for key: %s", entry.model_id)

    async def _load(self, entry: _WantedServable, spec: ModelSpec) -> SaxError | None:
        self._step(entry, StatusEvent.LOAD)
        entry.spec, entry.progress = spec, Progress("waiting for another load")
        async with self._one_load:
            if entry.status is not ServableStatus.LOADING:  # cancelled while it waited
                self._step(entry, StatusEvent.UNLOADED)
                return None
            entry.progress = Progress("starting")
            entry.load = LoadThread(self._loader, spec, lambda news: _progress(entry, news))
            outcome = await entry.load.run()
            entry.load = None
            memory_return.soon()  # of what building the model took
        return self._keep(entry, outcome)

    def _keep(self, entry: _WantedServable, outcome: LoadedModel | SaxError) -> SaxError | None:
        """Serve the loaded model, or record why it failed."""
        entry.progress = None
        if not isinstance(outcome, SaxError):
            try:
                entry.servable = make_servable(entry.model_id, outcome, self.get, self.on_hang)
            except SaxError as exc:  # an adapter's base has gone meanwhile
                outcome.close()
                outcome = exc
            except Exception as exc:
                logger.exception("cannot serve key: %s", entry.model_id)
                outcome.close()
                outcome = as_load_error(exc)
        if isinstance(outcome, SaxError):
            entry.reason, entry.need = outcome.text, outcome.need
            self._step(entry, StatusEvent.FAILED)
            return outcome
        self._step(entry, StatusEvent.LOADED)
        tell_of_idle(entry.model_id, entry.acls, entry.servable.methods if entry.servable else ())
        logger.info("loading completed. Successfully loaded model for key: %s", entry.model_id)
        logger.info("memory plan of this server:\n%s", self.memory_table())
        return None

    def _step(self, entry: _WantedServable, event: StatusEvent) -> None:
        entry.status = transition(entry.status, event)
        if entry.status is not ServableStatus.FAILED:
            entry.reason, entry.need = "", None

    def _not_loaded(self, model_id: str, entry: _WantedServable | None) -> str:
        if entry is not None and entry.status is not ServableStatus.NONE:
            why = f": {entry.reason}" if entry.reason else ""
            return f"{model_id} is {entry.status} on this server{why}"
        held = ", ".join(servable.model_id for servable in self.loaded()) or "no model"
        return f"this server does not hold {shortened(model_id)}; it holds {held}"


def _same(wish: ModelSpec | None, spec: ModelSpec) -> bool:
    """Return True if `spec` is what is already wished for; ACLs are not compared."""
    if wish is not None and wish.version and wish.version == static_version(spec):
        return True  # loaded by this server's own flags
    return wish is not None and (
        (wish.version, wish.model_path, wish.checkpoint, dict(wish.overrides))
        == (spec.version, spec.model_path, spec.checkpoint, dict(spec.overrides))
    )


def _settle(settled: asyncio.Future[None], error: SaxError | None) -> None:
    if error is None:
        return settled.set_result(None)
    settled.set_exception(error)
    settled.exception()  # mark as retrieved: the caller may be gone


def _progress(entry: _WantedServable, news: Progress) -> None:
    if entry.status is ServableStatus.LOADING:
        entry.progress = news


def _info(entry: _WantedServable) -> ServableInfo:
    return ServableInfo(
        model_id=entry.model_id,
        status=entry.status,
        version=entry.spec.version if entry.spec else "",
        reason=entry.reason,
        need=entry.need,
        progress=entry.progress,
        memory=entry.servable.memory if entry.servable else 0,
        parts=entry.servable.parts if entry.servable else MemoryParts(),
        methods=tuple(entry.servable.methods) if entry.servable else (),
        queued=entry.servable.waiting if entry.servable else 0,
        running=entry.servable.running if entry.servable else 0,
        arrived=_arrived(entry.servable) if entry.servable else 0,
        acls=entry.acls.texts,
        note=entry.servable.note if entry.servable else "",
        kernels=entry.servable.kernels if entry.servable else "",
        activity=entry.servable.activity if entry.servable else IDLE,
        own=is_own(entry.spec),
    )


def is_own(spec: ModelSpec | None) -> bool:
    """Return True if the server loaded it by its own flags."""
    return spec is not None and bool(spec.version) and spec.version == static_version(spec)


def _arrived(servable: Servable) -> int:
    return sum(stats.arrived for stats in servable.methods.values())


async def load_static(servables: Servables, models: Sequence[ModelSpec]) -> None:
    """Load them in order. Raises LoadFailed naming the model: the server cannot do its work."""
    for spec in models:
        logger.info(
            "loading %s from %s (%s), as --model_keys says",
            spec.model_id,
            spec.checkpoint,
            spec.model_path,
        )
        try:
            await servables.load(spec)
        except SaxError as exc:
            raise LoadFailed(f"--model_keys: {spec.model_id} cannot be loaded: {exc.text}") from exc
    if models:
        logger.info("all %d models of --model_keys are loaded", len(models))
