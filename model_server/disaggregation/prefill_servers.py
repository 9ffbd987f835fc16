"""Prefill servers: the models that each holds, and the choice between them. On the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from model_server.disaggregation.contract import Contract, source_of
from model_server.disaggregation.handoff import KvHandoff, decode_handoff, encode_ask
from model_server.engine.engine import EngineRequest
from sax.errors import QueueFull, ReplicaLost, SaxError
from sax.proto import modelet_pb2, prefill_pb2
from sax.types import ModelSpec, ServableInfo, ServableStatus
from sax.wire import rpc
from sax.wire.models import encode_load
from sax.wire.servers import decode_status

logger = logging.getLogger(__name__)

_TICKET_S = 30.0  # a prompt that takes longer there is prefilled locally
_RELEASE_S = 5.0
_FIRST_PAUSE_S, _LAST_PAUSE_S = 1.0, 30.0
_FULL_PAUSE_S = 0.25  # short: space frees up as fast as pages are fetched


@dataclass(slots=True)
class _Trust:
    """Backoff state of a model on the server."""

    usable_at_s: float = 0.0
    pause_s: float = _FIRST_PAUSE_S
    trouble: str = ""  # class name of the last logged error


class PrefillServer:
    """Connection to one prefill server; must be closed."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel = rpc.open_channel(address)
        self.asked = 0  # prompts that it is computing for us
        self.holds: frozenset[str] = frozenset()  # models it has loaded
        self._trust: dict[str, _Trust] = {}
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        await self.channel.close()

    def usable(self, model_id: str) -> bool:
        trust = self._trust.get(model_id)
        return model_id in self.holds and (trust is None or time.monotonic() >= trust.usable_at_s)

    def lose(self) -> None:
        self.holds = frozenset()
        self._lost.set_result(None)
        self._lost = asyncio.get_running_loop().create_future()

    async def ask(
        self, model_id: str, contract: Contract, engine_request: EngineRequest, key: int
    ) -> KvHandoff:
        """Have a prompt computed. On a SaxError, back off for a while and re-raise."""
        self.asked += 1
        try:
            handoff = await self._unless_lost(
                self._call(encode_ask(model_id, contract, engine_request, key))
            )
        except SaxError as error:
            self.distrust(model_id, error)
            raise
        finally:
            self.asked -= 1
        return handoff

    async def release(self, key: int) -> None:
        """Release pages. If that fails they expire there."""
        request = prefill_pb2.ReleaseRequest(key=key)
        try:
            await rpc.call(
                self.channel,
                "/sax.prefill.PrefillService/Release",
                request,
                prefill_pb2.ReleaseResponse,
                peer=self._named,
                timeout_s=_RELEASE_S,
            )
        except SaxError as error:
            logger.debug("could not release pages: %s", error.text)

    def distrust(self, model_id: str, error: SaxError) -> None:
        """Back off, exponentially unless it is full; logs once per kind of error."""
        trust = self._trust.setdefault(model_id, _Trust())
        now = time.monotonic()
        if isinstance(error, QueueFull):
            trust.usable_at_s = now + _FULL_PAUSE_S
        else:
            trust.usable_at_s = now + trust.pause_s
            trust.pause_s = min(2 * trust.pause_s, _LAST_PAUSE_S)
        if trust.trouble != type(error).__name__:
            trust.trouble = type(error).__name__
            logger.warning(
                "%s does not prefill %s now, so this server does: %s",
                self._named,
                model_id,
                error.text,
            )

    def trust(self, model_id: str) -> None:
        before = self._trust.pop(model_id, None)
        if before is not None:
            logger.info("%s prefills %s again", self._named, model_id)

    @property
    def _named(self) -> str:
        return f"the prefill server at {self.address}"

    async def _call(self, request: prefill_pb2.PrefillRequest) -> KvHandoff:
        message = await rpc.call(
            self.channel,
            "/sax.prefill.PrefillService/Prefill",
            request,
            prefill_pb2.Ticket,
            peer=self._named,
            timeout_s=_TICKET_S,
        )
        return decode_handoff(message)

    async def _unless_lost(self, call: Coroutine[Any, Any, KvHandoff]) -> KvHandoff:
        lost, asking = self._lost, asyncio.ensure_future(call)
        try:
            await asyncio.wait({asking, lost}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
            raise ReplicaLost(f"{self._named} does not answer")
        finally:
            asking.cancel()


_PERIOD_S = 1.0
_STATUS_S = 3.0  # a server that takes longer to answer counts as lost
_LOAD_S = 3600.0
_FIRST_RETRY_S, _LAST_RETRY_S = 2.0, 60.0


class PrefillMirror:
    """Keeps the models of one prefill server in line with those loaded here.

    Polls about once a second, so that a restarted server gets its models again and a dead one is
    noticed. The server may work for others too: a model that is loaded there in another version
    belongs to someone else, and is replaced only when this server changes to a version that it has
    not requested yet.

    wanted: the language models that are loaded here, by id.
    """

    def __init__(
        self, server: PrefillServer, wanted: Callable[[], Mapping[str, ModelSpec]]
    ) -> None:
        self._server = server
        self._wanted = wanted
        self._told: dict[str, str] = {}  # model id -> digest of the last requested spec
        self._calls: dict[str, asyncio.Task[None]] = {}  # model id -> load or unload under way
        self._retry_at_s: dict[str, float] = {}
        self._retry_s: dict[str, float] = {}
        self._answers: bool | None = None  # None: not polled yet

    async def run(self) -> None:
        try:
            while True:
                await self._look()
                await asyncio.sleep(_PERIOD_S)
        finally:
            for call in self._calls.values():
                call.cancel()

    async def _look(self) -> None:
        try:
            reply = await self._call("GetStatus", _status_request(), _STATUS_S)
            self._follow({info.model_id: info for info in decode_status(reply).servables})
            self._note(None)
        except SaxError as error:
            self._server.lose()
            self._note(error)
        except Exception:  # the loop must survive
            logger.exception("polling a prefill server failed")

    def _follow(self, held: Mapping[str, ServableInfo]) -> None:
        loaded = (i.model_id for i in held.values() if i.status is ServableStatus.LOADED)
        self._server.holds = frozenset(loaded)
        wanted = dict(self._wanted())
        for model_id, spec in wanted.items():
            if model_id not in self._calls and self._should_load(held.get(model_id), spec):
                self._start(model_id, self._load(spec))
        for model_id in [each for each in self._told if each not in wanted]:
            if model_id not in self._calls:
                self._start(model_id, self._unload(model_id))

    def _should_load(self, info: ServableInfo | None, spec: ModelSpec) -> bool:
        if time.monotonic() < self._retry_at_s.get(spec.model_id, 0.0):
            return False
        if info is None or info.status is ServableStatus.FAILED:
            return True
        return self._told.get(spec.model_id) != _digest(spec)

    def _start(self, model_id: str, doing: Any) -> None:
        task = asyncio.create_task(doing)
        self._calls[model_id] = task
        task.add_done_callback(lambda _: self._calls.pop(model_id, None))

    async def _load(self, spec: ModelSpec) -> None:
        model_id = spec.model_id
        self._told[model_id] = _digest(spec)
        try:
            await self._call("Load", encode_load(spec), _LOAD_S)
        except SaxError as error:
            pause_s = self._retry_s.get(model_id, _FIRST_RETRY_S)
            self._retry_at_s[model_id] = time.monotonic() + pause_s
            self._retry_s[model_id] = min(2 * pause_s, _LAST_RETRY_S)
            logger.warning(
                "the prefill server at %s failed to load %s; retrying in %.0f s: %s",
                self._server.address,
                model_id,
                pause_s,
                error.text,
            )
        else:
            self._retry_at_s.pop(model_id, None)
            self._retry_s.pop(model_id, None)
            logger.info("the prefill server at %s holds %s", self._server.address, model_id)

    async def _unload(self, model_id: str) -> None:
        try:
            await self._call("Unload", modelet_pb2.UnloadRequest(model_key=model_id), _LOAD_S)
        except SaxError as error:
            logger.warning(
                "the prefill server at %s failed to unload %s: %s",
                self._server.address,
                model_id,
                error.text,
            )
        self._told.pop(model_id, None)

    async def _call(self, method: str, request: Any, timeout_s: float) -> Any:
        return await rpc.call(
            self._server.channel,
            f"/sax.Modelet/{method}",
            request,
            getattr(modelet_pb2, f"{method}Response"),
            peer=f"the prefill server at {self._server.address}",
            timeout_s=timeout_s,
        )

    def _note(self, error: SaxError | None) -> None:
        """Log once when the server goes away and once when it comes back."""
        answers = error is None
        if answers != self._answers:
            self._answers = answers
            if error is None:
                logger.info("the prefill server at %s answers", self._server.address)
            else:
                logger.warning("prefilling locally: %s", error.text)


def _digest(spec: ModelSpec) -> str:
    """Digest a spec. A change is sent as a new Load; one that only changes ACLs reloads nothing."""
    return f"{source_of(spec)} {sorted(spec.acls.items())}"


def _status_request() -> modelet_pb2.GetStatusRequest:
    return modelet_pb2.GetStatusRequest(include_failure_reasons=True)


class PrefillServers:
    """The prefill servers of this process, and the choice between them."""

    def __init__(
        self, addresses: Sequence[str], wanted: Callable[[], Mapping[str, ModelSpec]]
    ) -> None:
        self._addresses = addresses
        self._wanted = wanted
        self._servers: list[PrefillServer] = []
        self._keepers: list[asyncio.Task[None]] = []
        self._turn = 0

    def start(self) -> None:
        self._servers = [PrefillServer(address) for address in self._addresses]
        self._keepers = [
            asyncio.create_task(PrefillMirror(server, self._wanted).run())
            for server in self._servers
        ]

    async def stop(self) -> None:
        """Disconnect; models stay loaded there and pages expire."""
        for keeper in self._keepers:
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper
        await asyncio.gather(*(server.close() for server in self._servers))

    def choose(self, model_id: str) -> PrefillServer | None:
        """Return the usable server with the fewest prompts in flight, round-robin among equals."""
        usable = [server for server in self._servers if server.usable(model_id)]
        if not usable:
            return None
        least = min(server.asked for server in usable)
        equals = [server for server in usable if server.asked == least]
        self._turn += 1
        return equals[self._turn % len(equals)]
