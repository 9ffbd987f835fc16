"""Client of one prefill server: whether it is usable now, and requests to it.

Runs on the event loop. Its `PrefillMirror` polls the server.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from model_server.disaggregation.contract import Contract
from model_server.disaggregation.handoff import KvHandoff, decode_handoff, encode_ask
from model_server.engine.engine import EngineRequest
from sax.errors import QueueFull, ReplicaLost, SaxError
from sax.proto import prefill_pb2
from sax.wire import rpc

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
