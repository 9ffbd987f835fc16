"""Calls to the model servers of a cell, over one connection to each.

Knows the Modelet service and nothing of why it is called.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from typing import Any, Protocol

import grpc.aio

from admin_server.seen import Action, Load
from sax import codec
from sax.errors import NotFound, NotLoaded, PermissionDenied, ReplicaLost, Unauthenticated
from sax.proto import modelet_pb2
from sax.rpc import Reply, open_channel
from sax.rpc import call as call_once
from sax.types import ServerStatus, Traffic

_log = logging.getLogger(__name__)

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
    """Modelets over gRPC; a connection opens at the first call to a server."""

    def __init__(self) -> None:
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._traffic: dict[str, tuple[int, Traffic]] = {}  # polls since it was asked for
        self._refused_by: set[str] = set()

    async def status(self, address: str) -> ServerStatus:
        try:
            status = await self._status(address)
        except (Unauthenticated, PermissionDenied) as exc:
            if address not in self._refused_by:  # this does not pass by itself: say it once
                _log.warning("%s", exc.text)
            self._refused_by.add(address)
            raise
        self._refused_by.discard(address)
        return status

    async def _status(self, address: str) -> ServerStatus:
        age, traffic = self._traffic.get(address, (_POLLS_PER_TRAFFIC, Traffic()))
        asking = age >= _POLLS_PER_TRAFFIC
        request = modelet_pb2.GetStatusRequest(
            include_failure_reasons=True, include_method_stats=asking
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
            reply = modelet_pb2.LoadResponse
            await call(channel, "/sax.Modelet/Load", load, reply, peer=peer, timeout_s=None)
            return
        unload = modelet_pb2.UnloadRequest(model_key=action.model_id)
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


async def call(
    channel: grpc.aio.Channel, path: str, request: Any, reply: type[Reply], **settings: Any
) -> Reply:
    """One call, and in plain words that a server does not take this admin server for one."""
    try:
        return await call_once(channel, path, request, reply, **settings)
    except (Unauthenticated, PermissionDenied) as exc:
        raise type(exc)(
            f"{settings['peer']} refuses this admin server: {exc.text}. Start the admin server "
            "with SAX_TOKEN, SAX_TOKEN_FILE or SAX_TLS_CERT of a principal in the --admin_acl of "
            "the model server"
        ) from exc
