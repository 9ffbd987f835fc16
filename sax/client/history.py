"""Client of the Cell service: a model's versions, canaries, rollback, events, servers' logs."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable

from sax.client.admin import Admin
from sax.errors import InvalidRequest, StaleRevision
from sax.flags.last_lines import LogLine
from sax.format import quoted
from sax.names import ModelId
from sax.proto import cell_pb2, control_pb2
from sax.types import Event, Version
from sax.wire.records import decode_event, decode_log, decode_version

_VERSION = re.compile("[0-9a-f]{32}")
_ATTEMPTS = 8  # each fails only because another client's change succeeded
_PAUSE_S = 0.05


class HistoryCalls:
    """Mixin: calls about versions, canaries, events and logs, all on the admin."""

    _admin: Admin

    async def rollback(
        self, model_id: str, version: str = "", *, timeout_s: float | None = None
    ) -> str:
        """Return to a version ("": the one before the current) and return its id, once durable.

        Only what is loaded is rolled back: replicas, ACLs, placement and autoscaling stay. Raises
        ModelNotFound, NotFound for an unknown version, InvalidRequest.
        """
        request = cell_pb2.RollbackRequest(
            model_id=str(ModelId.parse(model_id)), uuid=bytes.fromhex(check_version(version))
        )
        answer = cell_pb2.RollbackResponse
        return (await self._admin.change("Cell/Rollback", request, answer, timeout_s)).uuid.hex()

    async def promote(self, model_id: str, *, timeout_s: float | None = None) -> str:
        """Roll a canary out to all replicas, one by one; return its version, once durable.

        Raises ModelNotFound, InvalidRequest for a model without a canary.
        """
        request = cell_pb2.PromoteRequest(model_id=str(ModelId.parse(model_id)))
        answer = cell_pb2.PromoteResponse
        return (await self._admin.change("Cell/Promote", request, answer, timeout_s)).uuid.hex()

    async def abort(self, model_id: str, *, timeout_s: float | None = None) -> str:
        """Go back from a canary; return the version of the model, which stays, once durable.

        Raises ModelNotFound, InvalidRequest for a model without a canary.
        """
        request = cell_pb2.AbortRequest(model_id=str(ModelId.parse(model_id)))
        answer = cell_pb2.AbortResponse
        return (await self._admin.change("Cell/Abort", request, answer, timeout_s)).uuid.hex()

    async def versions(self, model_id: str, *, timeout_s: float | None = None) -> list[Version]:
        """List the versions a model can roll back to, newest first. Raises ModelNotFound."""
        request = cell_pb2.VersionsRequest(model_id=str(ModelId.parse(model_id)))
        answer = cell_pb2.VersionsResponse
        reply = await self._admin.read("Cell/Versions", request, answer, timeout_s)
        return [decode_version(version) for version in reply.versions]

    async def events(
        self,
        model_id: str = "",
        *,
        before: int = 0,
        limit: int = 0,
        timeout_s: float | None = None,
    ) -> list[Event]:
        """List changes with author and time, newest first: of one model or of all.

        The model may be unpublished. `before` is an event number, for paging back; `limit` 0 means
        100.
        """
        if model_id:
            ModelId.parse(model_id)
        request = cell_pb2.EventsRequest(
            model_id=model_id,
            before=_in_range(before, 2**63, "before"),
            limit=_in_range(limit, 2**31, "limit"),
        )
        answer = cell_pb2.EventsResponse
        reply = await self._admin.read("Cell/Events", request, answer, timeout_s)
        return [decode_event(event) for event in reply.events]

    async def log(self, server: str = "", *, timeout_s: float | None = None) -> list[LogLine]:
        """Return the last lines that a server logged, the newest last.

        server: host:port of a model server that has joined; "": the admin server that leads. Raises
        NotFound, PermissionDenied to all but operators of the cell, ReplicaLost.
        """
        request, answer = control_pb2.LogRequest(server=server), control_pb2.LogResponse
        return decode_log(await self._admin.read("Cell/Log", request, answer, timeout_s))


async def merging(merge_and_write: Callable[[], Awaitable[None]]) -> None:
    """Read, merge and write; retry if another client wrote in between, so that both changes apply.

    Raises StaleRevision when other clients win every time.
    """
    for attempt in range(1, _ATTEMPTS):
        try:
            return await merge_and_write()
        except StaleRevision:
            await asyncio.sleep(random.uniform(0, _PAUSE_S * attempt))
    return await merge_and_write()


def check_version(text: str) -> str:
    """Return a version id, or "", unchanged. Raises InvalidRequest."""
    if text and not _VERSION.fullmatch(text):
        raise InvalidRequest(
            f"{quoted(text)} is not a version: use its 32 hex digits, as shown by `sax versions`",
            param="version",
        )
    return text


def _in_range(number: int, end: int, param: str) -> int:
    if not 0 <= number < end:
        raise InvalidRequest(f"{param} is {number}; it must be 0 or more", param=param)
    return number
