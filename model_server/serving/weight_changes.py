"""Changes of a loaded model's weights, and pauses of its engine, as operators ask for them."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Callable, Coroutine
from typing import Any

from model_server.engine.engine import Engine
from model_server.engine.islands.engine_group import EngineGroup
from model_server.engine.running.ops import ForgetWeights, ReadWeights, Sleep, WriteWeights
from model_server.loading.loaded import Loaded
from sax.errors import InvalidRequest, StaleRevision, Unavailable
from sax.format import quoted
from sax.weights import PUBLISHED, Pausing, ReplicaWeights, WeightAction, WeightChange, WeightState

logger = logging.getLogger(__name__)

_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}")
_PASSING = ("memory:", "shm:")  # sources that are gone once they were read


class WeightChanges:
    """The weights of one loaded model. Runs on the event loop; one change at a time.

    A change goes on if its caller goes away. One that fails leaves everything as it was.
    """

    def __init__(self, model_id: str, loaded: Loaded, engine: Engine | EngineGroup) -> None:
        self.version = ""  # of the weights that compute what is delivered now; "": as published
        self.state = WeightState.SERVING
        self.model_id = model_id
        self._loaded = loaded
        self._engine = engine
        self._updates = 0  # the last number, or as many more as had names since
        self._source = loaded.source  # from which weights can be read again; "": from none
        self._changing = ""  # what is being done; "": nothing
        self._loop = asyncio.get_running_loop()

    async def carry_out(self, asked: WeightChange) -> ReplicaWeights:
        """Do what is asked, and return the state then. Raises as the call of that name."""
        match asked.action:
            case WeightAction.UPDATE:
                await self.update(asked)
            case WeightAction.PAUSE:
                await self.pause(asked.pausing)
            case WeightAction.RESUME:
                await self.resume()
            case WeightAction.SLEEP:
                await self.sleep(asked.pausing)
            case WeightAction.WAKE:
                await self.wake(asked.source, asked.version)
            case WeightAction.STATUS:
                pass
        return ReplicaWeights("", self.version or PUBLISHED, self.state)

    async def update(self, asked: WeightChange) -> str:
        """Replace weights between two steps, and return their version.

        Raises InvalidRequest, StaleRevision, Unavailable, CheckpointError, MemoryPlanError.
        """
        version = self._checked(asked)
        if self.state is WeightState.ASLEEP:
            raise Unavailable(
                f"{self.model_id} is asleep: wake it, from this checkpoint if need be"
            )
        await self._change("an update of its weights", lambda: self._update(asked, version))
        return version

    async def pause(self, pausing: Pausing = Pausing.WAIT) -> None:
        """Compute nothing until `resume`; requests wait in the queue. Raises Unavailable."""
        self._check_awake("pause")
        await self._change("a pause", lambda: self._pause(pausing))

    async def resume(self) -> None:
        """End a pause; does nothing without one. Raises Unavailable for a model that sleeps."""
        self._check_awake("resume")
        if self.state is WeightState.PAUSED:
            self._own_engine.pauses.release()
            self.state = WeightState.SERVING

    async def sleep(self, pausing: Pausing = Pausing.WAIT) -> None:
        """Free weights and pages; programs and process stay. Does nothing if it sleeps already.

        Raises InvalidRequest, Unavailable.
        """
        if pausing is Pausing.KEEP:
            raise InvalidRequest(
                "sleep frees keys and values, so no answer can keep them: choose wait or recompute",
                param="mode",
            )
        self._check_fixed()
        if self.state is not WeightState.ASLEEP:
            await self._change("its falling asleep", lambda: self._sleep(pausing))

    async def wake(self, source: str = "", version: str = "") -> None:
        """Read all weights, those of before without a source, and serve. Does nothing if awake.

        version: of those of another source; "": the next number.
        Raises InvalidRequest, Unavailable, CheckpointError, MemoryPlanError.
        """
        if self.state is not WeightState.ASLEEP:
            return
        if not (source or self._source):
            raise InvalidRequest(
                f"the weights of {self.model_id} came from memory, or from several sources: name "
                "a checkpoint to wake it with",
                param="source",
            )
        named = self._named(version)
        await self._change("its awaking", lambda: self._wake(source or self._source, named))

    @property
    def asleep(self) -> bool:
        return self.state is WeightState.ASLEEP

    @property
    def _own_engine(self) -> Engine:
        assert isinstance(self._engine, Engine), "`_check_fixed` comes first"
        return self._engine

    def _check_fixed(self) -> None:
        fixed = self._loaded.fixed
        if isinstance(self._engine, EngineGroup) or ReadWeights not in self._loaded.runner.ops:
            fixed = fixed or "its devices are of several islands"
        if fixed:
            raise Unavailable(
                f"the weights of {self.model_id} cannot change in place, because {fixed}: publish "
                "the new checkpoint with `sax update` instead"
            )

    def _check_awake(self, doing: str) -> None:
        if isinstance(self._engine, EngineGroup):
            raise Unavailable(f"{self.model_id} computes on several islands: it cannot {doing}")
        if self.state is WeightState.ASLEEP:
            raise Unavailable(f"{self.model_id} is asleep: wake it first")

    def _checked(self, asked: WeightChange) -> str:
        """Return the version of an update."""
        self._check_fixed()
        if asked.expected and asked.expected != (self.version or PUBLISHED):
            raise StaleRevision(
                f"{self.model_id} has weights of version {self.version or PUBLISHED}, not "
                f"{quoted(asked.expected)}: send what follows on that, or leave out the version "
                "that you expect",
                param="expected",
            )
        return self._named(asked.version)

    def _named(self, version: str) -> str:
        """Return the version, or the next number without one. Raises InvalidRequest."""
        version = version or str(self._updates + 1)
        if not _VERSION.fullmatch(version):
            raise InvalidRequest(
                f"{quoted(version)} is no version: give up to 64 letters, digits, dots and dashes",
                param="version",
            )
        return version

    async def _change(self, what: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._changing:
            raise Unavailable(
                f"{self._changing} of {self.model_id} is under way: try again once it is done",
                retry_after_s=1.0,
            )
        self._changing = what
        task = asyncio.ensure_future(work())
        task.add_done_callback(self._changed)
        await asyncio.shield(task)

    def _changed(self, task: asyncio.Future[None]) -> None:
        self._changing = ""
        if not task.cancelled() and (error := task.exception()):
            logger.warning("%s: its weights stay: %s", self.model_id, error)

    async def _update(self, asked: WeightChange, version: str) -> None:
        await self._replace(asked.source, version, asked.pausing, partial=asked.partial)
        self._count(version)
        passing = asked.partial or asked.source.startswith(_PASSING)
        self._source = "" if passing else asked.source

    def _count(self, version: str) -> None:
        self._updates = int(version) if version.isdecimal() else self._updates + 1

    async def _replace(
        self, source: str, version: str, pausing: Pausing, *, partial: bool = False
    ) -> None:
        """Read weights on every host, and put them in place between two steps."""
        runner, pauses = self._loaded.runner, self._own_engine.pauses
        key = secrets.token_hex(8)

        def put() -> None:
            runner.do(WriteWeights(key))
            pauses.renew()
            # Behind all updates that were computed with the old ones.
            self._loop.call_soon_threadsafe(self._arrived, version)

        try:
            reading = runner.do(ReadWeights(key, source, partial))
            await asyncio.to_thread(reading.result)
            await asyncio.wrap_future(pauses.between(put, pausing))
        except BaseException:
            if not runner.closed:
                runner.do(ForgetWeights(key))
            raise
        logger.info("%s: weights of version %s from %s", self.model_id, version, source)

    def _arrived(self, version: str) -> None:
        self.version = version

    async def _pause(self, pausing: Pausing) -> None:
        await asyncio.wrap_future(self._own_engine.pauses.hold(pausing))
        self.state = WeightState.PAUSED

    async def _sleep(self, pausing: Pausing) -> None:
        runner, pauses = self._loaded.runner, self._own_engine.pauses
        await self._pause(pausing)

        def free() -> None:
            runner.do(Sleep())
            pauses.renew()

        await asyncio.wrap_future(pauses.between(free, Pausing.RECOMPUTE))
        self.state = WeightState.ASLEEP

    async def _wake(self, source: str, version: str) -> None:
        same = source == self._source
        await self._replace(source, self.version if same else version, Pausing.RECOMPUTE)
        if not same:
            self._count(version)
        self._source = source
        self._own_engine.pauses.release()
        self.state = WeightState.SERVING
