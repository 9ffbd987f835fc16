"""The gRPC service that jaxlib's client calls: versions, sessions and host buffers.

Messages of a session stay bytes here: the dispatcher parses requests once and passes answers on as
they are.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from model_server.pathways import protocol as messages
from model_server.pathways.http2.call import CallHandler, GrpcCall
from model_server.pathways.http2.connection import OpenCall
from model_server.pathways.protocol import parsed
from model_server.pathways.proxy.client_session import HostBuffers
from model_server.pathways.proxy.dispatcher import Dispatcher
from model_server.pathways.scheduling.answers import Buffer
from model_server.pathways.scheduling.handles import Fault
from sax.errors import InvalidRequest, SaxError, UnsupportedParameter
from sax.format import human_bytes

logger = logging.getLogger(__name__)

SERVICE = "xla.ifrt.proxy.GrpcIfrtService"
STORE_KEY = "ifrt-proxy-grpc-host-buffer-store-metadata-bin"
SESSION_KEY = "ifrt-proxy-grpc-ifrt-session-metadata-bin"
PROTOCOL = 25  # what the messages of jaxlib 0.10 mean here
SERDES = 3
_MOST_WEIGHT = 64.0
_CHUNK = 2 << 20  # bytes of a host buffer per message
_MOST_WAITING = 1024  # requests that are read and not taken by the dispatcher


class Introduction(NamedTuple):
    """A client as it introduces itself."""

    name: str  # "": none given
    weight: float  # its share of islands where clients compete


def agreed(request: Any) -> Any:
    """Return the version to speak, for a GrpcGetVersionRequest. Raises InvalidRequest."""
    least, most = request.min_version, request.max_version
    if not least.protocol_version <= PROTOCOL <= most.protocol_version:
        raise InvalidRequest(
            f"this client speaks versions {least.protocol_version} to {most.protocol_version} of "
            f"the IFRT proxy protocol and this server speaks {PROTOCOL}: use a jaxlib from 0.10 to "
            "0.12"
        )
    serdes = min(SERDES, most.ifrt_serdes_version_number)
    if least.ifrt_serdes_version_number > serdes:
        raise InvalidRequest(
            f"this client writes IFRT values from version {least.ifrt_serdes_version_number} on "
            f"and this server reads up to {SERDES}: use a jaxlib from 0.10 to 0.12"
        )
    return messages.IfrtProxyVersion(protocol_version=PROTOCOL, ifrt_serdes_version_number=serdes)


def introduced(metadata: Any) -> Introduction:
    """Return the client of a GrpcIfrtSessionMetadata. Raises InvalidRequest.

    `initialization_data` of the client's options may hold `name` and `weight`.
    """
    spoken = metadata.version.protocol_version
    if spoken != PROTOCOL:
        raise InvalidRequest(
            f"a session in version {spoken} of the IFRT proxy protocol; {PROTOCOL} was agreed on"
        )
    values = metadata.initialization_data.attributes
    return Introduction(
        values["name"].string_value.decode(errors="replace") if "name" in values else "",
        _weight(values["weight"]) if "weight" in values else 1.0,
    )


def _weight(value: Any) -> float:
    weight = value.float_value or float(value.int64_value)
    if not 0 < weight <= _MOST_WEIGHT:
        raise InvalidRequest(f"a weight of {weight:g}: use one above 0 and up to {_MOST_WEIGHT:g}")
    return weight


def metadata(call: GrpcCall, key: str, message: Any) -> Any:
    """Return the message in a call's metadata. Raises InvalidRequest."""
    found = call.metadata(key)
    if found is None:
        raise InvalidRequest(f"a call without the metadata {key}: use jaxlib's client")
    return parsed(found, message)


class StoreCall(CallHandler):
    """Takes a host buffer in pieces."""

    def __init__(self, dispatcher: Dispatcher, call: GrpcCall) -> None:
        """Raises InvalidRequest."""
        self._wanted = metadata(call, STORE_KEY, messages.GrpcHostBufferStoreMetadata)
        self._dispatcher = dispatcher
        self._call = call
        self._pieces: list[bytes] = []
        self._bytes = 0

    def received(self, message: bytes) -> None:
        """Raises InvalidRequest for more than was announced."""
        piece = parsed(message, messages.GrpcHostBufferStoreRequest).data
        self._pieces.append(piece)
        self._bytes += len(piece)
        if self._bytes > self._wanted.buffer_size:
            raise self._wrong_size()

    def complete(self) -> None:
        """Raises InvalidRequest for less, Unavailable for an unknown session, QueueFull."""
        wanted = self._wanted
        if self._bytes != wanted.buffer_size:
            raise self._wrong_size()
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._dispatcher.session(wanted.session_id).buffers.store(wanted.handle, data)
        self._call.send()
        self._call.end()

    def gone(self) -> None:
        self._pieces.clear()

    def _wrong_size(self) -> InvalidRequest:
        wanted = self._wanted
        return InvalidRequest(
            f"host buffer {wanted.handle} has {self._bytes} bytes, and {wanted.buffer_size} were "
            "announced: send all of it, and nothing else"
        )


class LookUpCall(CallHandler):
    """Gives a host buffer in pieces; it stays until it is deleted."""

    def __init__(self, dispatcher: Dispatcher, call: GrpcCall) -> None:
        self._dispatcher = dispatcher
        self._call = call
        self._waiting: asyncio.Task[None] | None = None

    def received(self, message: bytes) -> None:
        """Raises NotFound, Unavailable for an unknown session, InvalidRequest for a second one."""
        if self._waiting is not None:
            raise InvalidRequest("a second look-up in one call: use a call for each")
        wanted = parsed(message, messages.GrpcHostBufferLookupRequest)
        buffers = self._dispatcher.session(wanted.session_id).buffers
        found = buffers.look_now(wanted.handle)
        if found is None:
            self._waiting = asyncio.ensure_future(self._wait(buffers, wanted.handle))
        else:
            self._send(found)

    def gone(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()

    async def _wait(self, buffers: HostBuffers, handle: int) -> None:
        try:
            self._send(await buffers.look_up(handle))
        except SaxError as error:
            self._call.refuse(error)

    def _send(self, found: Buffer | Fault) -> None:
        if isinstance(found, Fault):  # the client learns here why a copy failed
            self._call.end(found.code, found.text)
            return
        data = memoryview(found).cast("B")
        for at in range(0, max(1, len(data)), _CHUNK):
            piece = data[at : at + _CHUNK]
            self._call.send(_PIECE + _varint(len(piece)), piece)  # a response, without a copy
        self._call.end()


_DATA = messages.GrpcHostBufferLookupResponse.DESCRIPTOR.fields_by_name["data"]
_PIECE = bytes([_DATA.number << 3 | 2])  # protobuf's tag of a field of bytes


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


class SessionCall(CallHandler):
    """One client's stream of requests and answers."""

    def __init__(self, dispatcher: Dispatcher, call: GrpcCall) -> None:
        """Raises InvalidRequest."""
        who = introduced(metadata(call, SESSION_KEY, messages.GrpcIfrtSessionMetadata))
        self._dispatcher = dispatcher
        self._call = call
        self._session = dispatcher.open(name=who.name or call.peer, weight=who.weight)
        self._requests: deque[bytes] = deque()
        self._some = asyncio.Event()
        self._complete = False
        self._tasks = [asyncio.ensure_future(each()) for each in (self._serve, self._answer)]
        logger.info("session of %s begins", self._session.name)

    def received(self, message: bytes) -> None:
        self._requests.append(message)
        self._some.set()
        if len(self._requests) > _MOST_WAITING:
            self._call.pause()

    def complete(self) -> None:
        self._complete = True
        self._some.set()

    def gone(self) -> None:
        self._dispatcher.close(self._session)
        for task in self._tasks:
            task.cancel()
        told = "session of %s ends after %d requests and %s of host buffers"
        session = self._session
        logger.info(told, session.name, session.requests, human_bytes(session.buffers.stored))

    async def _serve(self) -> None:
        try:
            while self._requests or not self._complete:
                await self._some.wait()
                self._some.clear()
                while self._requests:
                    await self._call.room()  # a client that reads no answers gets no more
                    await self._dispatcher.serve(self._session, self._requests.popleft())
                self._call.resume()
        except SaxError as error:
            self._call.refuse(error)
        else:
            self._call.end()

    async def _answer(self) -> None:
        while True:
            for response in await self._session.answers():
                self._call.send(response)
            await self._call.room()


Unary = Callable[[Dispatcher, bytes], bytes]


def service_of(dispatcher: Dispatcher) -> Mapping[str, OpenCall]:
    """Return the methods of GrpcIfrtService, by path."""
    unary: dict[str, Unary] = {
        "GetVersion": _version,
        "HostBufferDelete": _delete,
        "HostBufferReadFromDisk": _read_from_disk,
    }
    streams: dict[str, Callable[[Dispatcher, GrpcCall], CallHandler]] = {
        "IfrtSession": SessionCall,
        "HostBufferStore": StoreCall,
        "HostBufferLookup": LookUpCall,
    }
    methods = {name: partial(streams[name], dispatcher) for name in streams}
    methods |= {name: partial(UnaryCall, dispatcher, unary[name]) for name in unary}
    return {f"/{SERVICE}/{name}": opens for name, opens in methods.items()}


class UnaryCall(CallHandler):
    """A call of one message that is answered at once."""

    def __init__(self, dispatcher: Dispatcher, answer: Unary, call: GrpcCall) -> None:
        self._dispatcher = dispatcher
        self._answer = answer
        self._call = call

    def received(self, message: bytes) -> None:
        self._call.send(self._answer(self._dispatcher, message))
        self._call.end()


def _version(dispatcher: Dispatcher, raw: bytes) -> bytes:
    request = parsed(raw, messages.GrpcGetVersionRequest)
    return messages.GrpcGetVersionResponse(version=agreed(request)).SerializeToString()


def _delete(dispatcher: Dispatcher, raw: bytes) -> bytes:
    request = parsed(raw, messages.GrpcHostBufferDeleteRequest)
    dispatcher.session(request.session_id).buffers.delete(request.handle)
    return b""


def _read_from_disk(dispatcher: Dispatcher, raw: bytes) -> bytes:
    raise UnsupportedParameter(
        "this proxy server reads no files of its clients: unset "
        "IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_DIRECTORY in the client's environment"
    )
