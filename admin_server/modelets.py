"""Calls to the model servers of a cell, over one connection to each.

Knows the Modelet service and nothing of why it is called.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Protocol

import grpc.aio

from admin_server.seen import Action, Load
from sax import codec
from sax.errors import NotFound, NotLoaded, ReplicaLost
from sax.proto import modelet_pb2
from sax.rpc import call, open_channel
from sax.types import ServerStatus, Traffic

_STATUS_TIMEOUT_S = 5.0
# Rates are of the last minute, and percentiles cost the server a sort for every method.
_POLLS_PER_TRAFFIC = 10


class Modelets(Protocol):
    """What the reconciler asks of model servers. All but `close` raise SaxError."""

    async def status(self, address: str) -> ServerStatus:
        """What the server holds."""
        ...

    async def carry_out(self, action: Action) -> None:
        """Return once the model is loaded, or is gone, however long that takes."""
        ...

    async def close(self, address: str) -> None:
        """Hang up."""
        ...


class GrpcModelets:
    """Modelets over gRPC; a connection opens at the first call to a server.

    Every call tells the term of this leader: servers obey none that is older than they have seen.
    """

    def __init__(self, term: int = 0) -> None:
        self._term = term
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._traffic: dict[str, tuple[int, Traffic]] = {}  # polls since it was asked for

    async def status(self, address: str) -> ServerStatus:
        age, traffic = self._traffic.get(address, (_POLLS_PER_TRAFFIC, Traffic()))
        asking = age >= _POLLS_PER_TRAFFIC
        request = modelet_pb2.GetStatusRequest(
            include_failure_reasons=True, include_method_stats=asking, term=self._term
        )
        reply = await call(
            self._channel(address),
            "/sax.Modelet/GetStatus",
            request,
            modelet_pb2.GetStatusResponse,
            peer=f"the model server {address}",
            timeout_s=_STATUS_TIMEOUT_S,
            unavailable=ReplicaLost,
        )
        status = codec.decode_status(reply)
        if not asking:
            status = replace(status, traffic=traffic)
        self._traffic[address] = (1 if asking else age + 1, status.traffic)
        return status

    async def carry_out(self, action: Action) -> None:
        channel, peer = self._channel(action.address), f"the model server {action.address}"
        # No deadline: a large model loads for many minutes. A server that dies breaks the
        # connection, and one that hangs falls silent to GetStatus and is dropped.
        if isinstance(action, Load):
            load = codec.encode_load(action.spec)
            load.term = self._term
            reply = modelet_pb2.LoadResponse
            await call(channel, "/sax.Modelet/Load", load, reply, peer=peer, timeout_s=None)
            return
        unload = modelet_pb2.UnloadRequest(model_key=action.model_id, term=self._term)
        gone = modelet_pb2.UnloadResponse
        with contextlib.suppress(NotFound, NotLoaded):  # gone already
            await call(channel, "/sax.Modelet/Unload", unload, gone, peer=peer, timeout_s=None)

    async def close(self, address: str) -> None:
        self._traffic.pop(address, None)
        channel = self._channels.pop(address, None)
        if channel is not None:
            await channel.close()

    def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            self._channels[address] = open_channel(address)
        return self._channels[address]
