"""The gRPC service that jaxlib's client calls: versions, sessions and host buffers."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import grpc

from model_server.pathways.http2.call import GrpcCall
from model_server.pathways.http2.connection import OpenCall
from model_server.pathways.protocol import messages
from model_server.pathways.proxy.front import Front
from model_server.pathways.proxy.greeting import agreed, introduced, metadata, parsed
from model_server.pathways.proxy.host_buffers import HostBuffers
from model_server.pathways.scheduling.handles import Fault
from model_server.pathways.scheduling.merging import Buffer
from sax.errors import InvalidRequest, SaxError, UnsupportedParameter, meaning
from sax.format import human_bytes

logger = logging.getLogger(__name__)


STORE_KEY = "ifrt-proxy-grpc-host-buffer-store-metadata-bin"
_CHUNK = 2 << 20  # bytes of a host buffer per message


class StoreCall:
    """Takes a host buffer in pieces."""

    def __init__(self, front: Front, call: GrpcCall) -> None:
        """Raises InvalidRequest."""
        self._wanted = metadata(call, STORE_KEY, messages.GrpcHostBufferStoreMetadata)
        self._front = front
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
        self._front.session(wanted.session_id).buffers.store(wanted.handle, data)
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


class LookUpCall:
    """Gives a host buffer in pieces; it stays until it is deleted."""

    def __init__(self, front: Front, call: GrpcCall) -> None:
        self._front = front
        self._call = call
        self._waiting: asyncio.Task[None] | None = None

    def received(self, message: bytes) -> None:
        """Raises NotFound, Unavailable for an unknown session, InvalidRequest for a second one."""
        if self._waiting is not None:
            raise InvalidRequest("a second look-up in one call: use a call for each")
        wanted = parsed(message, messages.GrpcHostBufferLookupRequest)
        buffers = self._front.session(wanted.session_id).buffers
        found = buffers.look_now(wanted.handle)
        if found is None:
            self._waiting = asyncio.ensure_future(self._wait(buffers, wanted.handle))
        else:
            self._send(found)

    def complete(self) -> None: ...

    def gone(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()

    async def _wait(self, buffers: HostBuffers, handle: int) -> None:
        try:
            self._send(await buffers.look_up(handle))
        except SaxError as error:
            self._call.end(grpc.StatusCode[meaning(error).grpc].value[0], error.text)

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


# A client's stream of requests and answers.
#
# Messages stay bytes here: the front parses requests once and passes answers on as they are.


SESSION_KEY = "ifrt-proxy-grpc-ifrt-session-metadata-bin"
_MOST_WAITING = 1024  # requests that are read and not taken by the front


class SessionCall:
    """Serves one client until it goes."""

    def __init__(self, front: Front, call: GrpcCall) -> None:
        """Raises InvalidRequest."""
        who = introduced(metadata(call, SESSION_KEY, messages.GrpcIfrtSessionMetadata))
        self._front = front
        self._call = call
        self._session = front.open(name=who.name or call.peer, weight=who.weight)
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
        self._front.close(self._session)
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
                    await self._front.serve(self._session, self._requests.popleft())
                self._call.resume()
        except SaxError as error:
            self._call.end(grpc.StatusCode[meaning(error).grpc].value[0], error.text)
        else:
            self._call.end()

    async def _answer(self) -> None:
        while True:
            for response in await self._session.answers():
                self._call.send(response)
            await self._call.room()


SERVICE = "xla.ifrt.proxy.GrpcIfrtService"
Unary = Callable[[Front, bytes], bytes]


def service_of(front: Front) -> Mapping[str, OpenCall]:
    """Return the methods of GrpcIfrtService, by path."""
    unary: dict[str, Unary] = {
        "GetVersion": _version,
        "HostBufferDelete": _delete,
        "HostBufferReadFromDisk": _read_from_disk,
    }
    streams: dict[str, Callable[[Front, GrpcCall], Any]] = {
        "IfrtSession": SessionCall,
        "HostBufferStore": StoreCall,
        "HostBufferLookup": LookUpCall,
    }
    methods = {name: partial(streams[name], front) for name in streams}
    methods |= {name: partial(UnaryCall, front, unary[name]) for name in unary}
    return {f"/{SERVICE}/{name}": opens for name, opens in methods.items()}


class UnaryCall:
    """A call of one message that is answered at once."""

    def __init__(self, front: Front, answer: Unary, call: GrpcCall) -> None:
        self._front = front
        self._answer = answer
        self._call = call

    def received(self, message: bytes) -> None:
        self._call.send(self._answer(self._front, message))
        self._call.end()

    def complete(self) -> None: ...

    def gone(self) -> None: ...


def _version(front: Front, raw: bytes) -> bytes:
    request = parsed(raw, messages.GrpcGetVersionRequest)
    return messages.GrpcGetVersionResponse(version=agreed(request)).SerializeToString()


def _delete(front: Front, raw: bytes) -> bytes:
    request = parsed(raw, messages.GrpcHostBufferDeleteRequest)
    front.session(request.session_id).buffers.delete(request.handle)
    return b""


def _read_from_disk(front: Front, raw: bytes) -> bytes:
    raise UnsupportedParameter(
        "this proxy server reads no files of its clients: unset "
        "IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_DIRECTORY in the client's environment"
    )
