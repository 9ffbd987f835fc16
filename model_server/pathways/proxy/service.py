"""The gRPC service that jaxlib's client calls: sessions and host buffers.

Messages of the session's stream stay bytes here: the front parses requests once and passes answers
on as they are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from model_server.pathways.protocol import messages
from model_server.pathways.proxy.client_session import ClientSession
from model_server.pathways.proxy.front import Front
from model_server.pathways.proxy.greeting import agreed, introduced
from model_server.pathways.scheduling.handles import Fault
from sax.errors import InvalidRequest, SaxError, UnsupportedParameter, meaning

logger = logging.getLogger(__name__)

SERVICE = "xla.ifrt.proxy.GrpcIfrtService"
SESSION_KEY = "ifrt-proxy-grpc-ifrt-session-metadata-bin"
STORE_KEY = "ifrt-proxy-grpc-host-buffer-store-metadata-bin"
_CHUNK = 2 << 20  # bytes of a host buffer per message
# A client that does not answer is gone after five seconds at most.
OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 2000),
    ("grpc.keepalive_timeout_ms", 2500),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.so_reuseport", 0),
)
_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}
Context = Any  # grpc.aio.ServicerContext, whose type parameters the stubs get wrong
T = TypeVar("T")


class ProxyService:
    """The methods of GrpcIfrtService over a front."""

    def __init__(self, front: Front) -> None:
        self._front = front

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what to add to a grpc.aio server."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "GetVersion": _unary(self.version, messages.GrpcGetVersionRequest),
                "IfrtSession": grpc.stream_stream_rpc_method_handler(self.session),
                "HostBufferStore": grpc.stream_unary_rpc_method_handler(self.store),
                "HostBufferLookup": grpc.unary_stream_rpc_method_handler(self.look_up),
                "HostBufferDelete": _unary(self.delete, messages.GrpcHostBufferDeleteRequest),
                "HostBufferReadFromDisk": _unary(
                    self.read_from_disk, messages.GrpcHostBufferReadFromDiskRequest
                ),
            },
        )

    async def version(self, request: Any, context: Context) -> Any:
        try:
            return messages.GrpcGetVersionResponse(version=agreed(request))
        except SaxError as error:
            await _abort(context, error)

    async def session(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Serve one client until it goes."""
        try:
            who = introduced(_metadata(context, SESSION_KEY, messages.GrpcIfrtSessionMetadata))
        except SaxError as error:
            await _abort(context, error)
            return
        session = self._front.open(name=who.name or context.peer(), weight=who.weight)
        logger.info("session of %s begins", session.name)
        writer = asyncio.ensure_future(_write(session, context))
        try:
            async for raw in requests:
                await self._front.serve(session, raw)
        except SaxError as error:
            await _abort(context, error)
        finally:
            self._front.close(session)
            writer.cancel()
            logger.info("session of %s ends after %d requests", session.name, session.requests)

    async def store(self, requests: AsyncIterator[bytes], context: Context) -> bytes:
        """Take a host buffer in pieces."""
        try:
            wanted = _metadata(context, STORE_KEY, messages.GrpcHostBufferStoreMetadata)
            pieces = [_piece(raw) async for raw in requests]
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            if len(data) != wanted.buffer_size:
                raise InvalidRequest(
                    f"host buffer {wanted.handle} has {len(data)} bytes, and {wanted.buffer_size} "
                    "were announced: send all of it"
                )
            self._front.session(wanted.session_id).buffers.store(wanted.handle, data)
        except SaxError as error:
            await _abort(context, error)
        return b""

    async def look_up(self, raw: bytes, context: Context) -> AsyncIterator[bytes]:
        """Give a host buffer in pieces; it stays until it is deleted."""
        try:
            wanted = _parsed(raw, messages.GrpcHostBufferLookupRequest)
            buffers = self._front.session(wanted.session_id).buffers
            found = await buffers.look_up(wanted.handle)
        except SaxError as error:
            await _abort(context, error)
            return
        if isinstance(found, Fault):  # the client learns here why a copy failed
            await context.abort(_CODES[found.code], found.text)
            return
        data = memoryview(found)
        for at in range(0, max(1, len(data)), _CHUNK):
            piece = bytes(data[at : at + _CHUNK])
            yield messages.GrpcHostBufferLookupResponse(data=piece).SerializeToString()

    async def delete(self, request: Any, context: Context) -> Any:
        try:
            self._front.session(request.session_id).buffers.delete(request.handle)
        except SaxError as error:
            await _abort(context, error)
        return messages.GrpcHostBufferDeleteResponse()

    async def read_from_disk(self, request: Any, context: Context) -> Any:
        await _abort(
            context,
            UnsupportedParameter(
                "this proxy server reads no files of its clients: unset "
                "IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_DIRECTORY in the client's environment"
            ),
        )


async def _write(session: ClientSession, context: Context) -> None:
    """Send a session's answers until it is closed."""
    while not session.closed:
        for response in await session.answers():
            await context.write(response)


def _unary(method: Callable[..., Any], request: Any) -> grpc.RpcMethodHandler[Any, Any]:
    return grpc.unary_unary_rpc_method_handler(
        method, request.FromString, lambda response: response.SerializeToString()
    )


def _metadata(context: Context, key: str, message: type[T]) -> T:
    """Return the message in the call's metadata. Raises InvalidRequest."""
    found: Mapping[str, bytes] = dict(context.invocation_metadata())
    if key not in found:
        raise InvalidRequest(f"a call without the metadata {key}: use jaxlib's client")
    return _parsed(found[key], message)


def _parsed(raw: bytes, message: Any) -> Any:
    try:
        return message.FromString(raw)
    except DecodeError as exc:
        name = message.DESCRIPTOR.name
        raise InvalidRequest(f"bytes that are no {name} ({exc}): use jaxlib's client") from exc


def _piece(raw: bytes) -> bytes:
    return _parsed(raw, messages.GrpcHostBufferStoreRequest).data


async def _abort(context: Context, error: SaxError) -> None:
    await context.abort(grpc.StatusCode[meaning(error).grpc], error.text)
