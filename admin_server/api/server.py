"""The Admin service on gRPC, and the gRPC server of all services."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from admin_server.api import cell_service
from admin_server.api.access import EVERYONE_MAY, Access
from admin_server.api.cell_service import CellService
from admin_server.cell.cell import Cell
from admin_server.cell.watch import Delta
from admin_server.leadership import AdminRole
from sax.auth.acl import caller
from sax.auth.security import OPEN_TO_ALL, Security
from sax.errors import InvalidRequest
from sax.proto import admin_pb2, admin_pb2_grpc, cell_pb2_grpc
from sax.scaling import check_replicas
from sax.wire.interceptor import ErrorInterceptor
from sax.wire.models import decode_spec, encode_published, encode_share
from sax.wire.rpc import server_options
from sax.wire.servers import decode_join, encode_joined, encode_stats

# Strict requests: refuse large ones, and unknown fields by name.
#
# A field unknown to this admin server would otherwise be dropped silently, and a newer client
# would believe it was honoured.
#
# Above every valid request (a spec has at most 256 KiB, a join some hundred model paths), below
# gRPC's own limit, so that an oversized request gets our error text.
REQUEST_BYTES = 4 * 1024 * 1024
RECEIVE_BYTES = 16 * 1024 * 1024

_PACKAGE = "/sax."
# A newer model server must be able to join an older admin server, which ignores whatever else it
# reports about itself.
_MAY_SAY_MORE = frozenset({"/sax.Admin/Join"})


class StrictInterceptor(grpc.aio.ServerInterceptor):
    """Refuses unary requests to our services with InvalidRequest, within `ErrorInterceptor`."""

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        handler = await continuation(handler_call_details)
        path: str = handler_call_details.method
        if handler is None or not handler.unary_unary or not path.startswith(_PACKAGE):
            return handler
        return grpc.unary_unary_rpc_method_handler(
            handler.unary_unary if path in _MAY_SAY_MORE else _checking(handler.unary_unary),
            request_deserializer=_reading(handler.request_deserializer, path),
            response_serializer=handler.response_serializer,
        )


def _reading(parse: Callable[[bytes], Message], path: str) -> Callable[[bytes], Message]:
    def read(data: bytes) -> Message:
        if len(data) > REQUEST_BYTES:
            text = f"a request of {len(data)} bytes to {path}: send at most {REQUEST_BYTES}"
            raise InvalidRequest(text, param="request")
        return parse(data)

    return read


def _checking(method: Callable[[Any, Any], Awaitable[Any]]) -> Any:
    async def checked(request: Message, context: Any) -> Any:
        check_known(request)
        return await method(request, context)

    return checked


def check_known(message: Message) -> None:
    for path in unknown_fields(message):
        raise InvalidRequest(
            f"{message.DESCRIPTOR.name} has no field {path}; it may come from a newer client than "
            "this admin server: update the admin server first, or omit the field",
            param=path,
        )


def unknown_fields(message: Message, path: str = "") -> Iterator[str]:
    """Paths of unknown fields, as in model.placement.99."""
    for unknown in UnknownFieldSet(message):  # pyright: ignore[reportUnknownVariableType]
        yield f"{path}{unknown.field_number}"
    for field, value in message.ListFields():
        for inner in _messages(field.message_type, value):
            yield from unknown_fields(inner, f"{path}{field.name}.")


def _messages(kind: Descriptor | None, value: Any) -> Iterator[Message]:
    """The messages in a field: none, one, several, or the values of a map."""
    if kind is None:
        return
    if kind.GetOptions().map_entry:
        if kind.fields_by_name["value"].message_type is not None:
            yield from value.values()
    elif isinstance(value, Message):
        yield value
    else:
        yield from value


_FRESH_S = 0.25


class CellListing:
    """Cache of the last List response, with the state it was built from."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._of: tuple[str, int] | None = None  # cell id (new with each leader) and last record
        self._made_s = 0.0
        self._answer = admin_pb2.ListResponse()

    def answer(self, cell: Cell, name: str) -> admin_pb2.ListResponse:
        """All models and servers. Raises InvalidName, NotFound for another cell's name."""
        cell.check_name(name)
        now, of = self._clock(), (cell.id, cell.ledger.sequence)
        if self._of != of or now - self._made_s >= _FRESH_S:
            self._of, self._made_s, self._answer = of, now, _encode(cell)
        return self._answer


def _encode(cell: Cell) -> admin_pb2.ListResponse:
    return admin_pb2.ListResponse(
        published_models=map(encode_published, cell.models()),
        servers=map(encode_joined, cell.servers()),
    )


SERVICE = "sax.Admin"
WRITES = "sax.Admin/writes"  # separate health service: reads continue while the store fails
_SLASHES_OF_A_CELL = 2  # /sax/<cell>; a model has one more
_LONGEST_WATCH_S = 60.0
_DEADLINE_MARGIN = 0.9  # of the client's deadline: answer before it expires
_NO_DEADLINE_S = 1e8  # gRPC reports no deadline as one centuries away

_HEALTH: Any = health  # its stubs lack `aio`
_ADMIN_GRPC: Any = admin_pb2_grpc
_CELL_GRPC: Any = cell_pb2_grpc
_HEALTH_GRPC: Any = health_pb2_grpc
Context = Any  # grpc.aio.ServicerContext is generic in the stubs only


class AdminService(admin_pb2_grpc.AdminServicer):
    def __init__(self, role: AdminRole, access: Access = EVERYONE_MAY) -> None:
        self._role = role
        self._by_flags = access
        self._listing = CellListing(time.monotonic)

    @property
    def _cell(self) -> Cell:
        return self._role.require()

    @property
    def _access(self) -> Access:
        return self._by_flags.granting(self._cell.ledger.state.admin_acl)

    async def Publish(
        self, request: admin_pb2.PublishRequest, context: Context
    ) -> admin_pb2.PublishResponse:
        spec = decode_spec(request.model)
        self._access.check_cell(caller(), "publish models")
        self._access.check_enforceable(spec)
        await self._cell.publish(spec, by=caller().name)
        return admin_pb2.PublishResponse()

    async def Update(
        self, request: admin_pb2.UpdateRequest, context: Context
    ) -> admin_pb2.UpdateResponse:
        spec = decode_spec(request.model)
        self._check_model(spec.model_id, "update")
        self._access.check_enforceable(spec)
        await self._cell.update(spec, by=caller().name)
        return admin_pb2.UpdateResponse()

    async def Unpublish(
        self, request: admin_pb2.UnpublishRequest, context: Context
    ) -> admin_pb2.UnpublishResponse:
        self._check_model(request.model_id, "unpublish")
        await self._cell.unpublish(request.model_id, by=caller().name)
        return admin_pb2.UnpublishResponse()

    async def List(
        self, request: admin_pb2.ListRequest, context: Context
    ) -> admin_pb2.ListResponse:
        if request.model_id.count("/") <= _SLASHES_OF_A_CELL:
            return self._listing.answer(self._cell, request.model_id)
        model = self._cell.find(request.model_id)
        return admin_pb2.ListResponse(published_models=[encode_published(model)])

    async def Stats(
        self, request: admin_pb2.StatsRequest, context: Context
    ) -> admin_pb2.StatsResponse:
        return encode_stats(self._cell.stats(request.model_id))

    async def WatchLoc(
        self, request: admin_pb2.WatchLocRequest, context: Context
    ) -> admin_pb2.WatchLocResponse:
        """Long poll: answers at the next change, or without changes before the deadline."""
        cell = self._cell
        delta = await cell.watch(
            request.model_id, request.admin_server_id, request.seqno, _patience_s(context)
        )
        return admin_pb2.WatchLocResponse(
            admin_server_id=cell.id,
            result=_encode_delta(delta),
            canary=encode_share(delta.canary),
        )

    async def WaitForReady(
        self, request: admin_pb2.WaitForReadyRequest, context: Context
    ) -> admin_pb2.WaitForReadyResponse:
        """Waits until the client's deadline, when gRPC cancels the call; for none, or fewer, not
        at all."""
        count = check_replicas(max(0, request.num_replicas), "num_replicas")
        await self._cell.wait_for_ready(request.model_id, count)
        return admin_pb2.WaitForReadyResponse()

    async def Join(
        self, request: admin_pb2.JoinRequest, context: Context
    ) -> admin_pb2.JoinResponse:
        self._access.check_cell(caller(), "join model servers")
        if request.leaving:
            self._cell.leave(request.address, request.incarnation_id)
        else:
            await self._cell.admit(decode_join(request))
        return admin_pb2.JoinResponse()

    def _check_model(self, model_id: str, doing: str) -> None:
        spec = self._cell.ledger.state.models.get(model_id)
        self._access.check_model(caller(), spec, doing)


def _patience_s(context: Context) -> float:
    left: float | None = context.time_remaining()
    if left is None or left > _NO_DEADLINE_S:
        return _LONGEST_WATCH_S
    return min(_LONGEST_WATCH_S, max(0.0, left * _DEADLINE_MARGIN))


def _encode_delta(delta: Delta) -> admin_pb2.WatchResult:
    return admin_pb2.WatchResult(
        next_seqno=delta.next_seqno,
        has_fullset=delta.full,
        values=delta.values,
        changelog=[
            admin_pb2.WatchResult.Mutation(addition=change.value)
            if change.added
            else admin_pb2.WatchResult.Mutation(deletion=change.value)
            for change in delta.changes
        ],
    )


def _changes(role: AdminRole) -> tuple[asyncio.Event, asyncio.Event]:
    return role.changed.next(), role.health.changed.next()


class AdminServer:
    """The gRPC server of one cell, with health and reflection."""

    def __init__(self, role: AdminRole, security: Security = OPEN_TO_ALL) -> None:
        """Raises InvalidRequest for unreadable tokens."""
        self._security = security
        interceptors = [ErrorInterceptor(security.authentication()), StrictInterceptor()]
        self._server = grpc.aio.server(
            interceptors=interceptors, options=server_options(RECEIVE_BYTES)
        )
        self._role = role
        self._health: Any = _HEALTH.aio.HealthServicer()
        access = Access(
            enforced=security.authenticates, cell=str(role.cell_id), admins=security.admins
        )
        _ADMIN_GRPC.add_AdminServicer_to_server(AdminService(role, access), self._server)
        _CELL_GRPC.add_CellServicer_to_server(CellService(role, access), self._server)
        _HEALTH_GRPC.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (SERVICE, cell_service.SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME),
            self._server,
        )

    async def start(self, host: str, port: int) -> int:
        """Start serving; returns the bound port. Raises InvalidRequest if it is unavailable."""
        try:
            bound = self._security.listen(self._server, f"{host}:{port}")
        except RuntimeError as exc:
            raise InvalidRequest(
                f"cannot listen on {host}:{port}: another process may be using it; "
                "give another --port, or 0 for any free one",
                param="port",
            ) from exc
        await self._server.start()
        # The process is up; the health of its services follows (see `tell_health`).
        await self._health.set("", health_pb2.HealthCheckResponse.SERVING)
        return bound

    async def tell_health(self) -> None:
        """Update service health on changes of role or store, until cancelled."""
        status, role = health_pb2.HealthCheckResponse, self._role
        while True:
            changed = [asyncio.ensure_future(e.wait()) for e in _changes(role)]
            leading = status.SERVING if role.cell is not None else status.NOT_SERVING
            for service in (SERVICE, cell_service.SERVICE):
                await self._health.set(service, leading)
            await self._health.set(WRITES, status.NOT_SERVING if role.health.failing else leading)
            try:
                await asyncio.wait(changed, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in changed:
                    each.cancel()

    async def stop(self, grace_s: float) -> None:
        """Accept nothing new; calls in progress get the grace period, then are cancelled."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)
