"""Host buffers on their way: from clients in pieces, and back."""

from __future__ import annotations

import asyncio

import grpc

from model_server.pathways.http2.call import GrpcCall
from model_server.pathways.protocol import messages
from model_server.pathways.proxy.front import Front
from model_server.pathways.proxy.greeting import metadata, parsed
from model_server.pathways.proxy.host_buffers import HostBuffers
from model_server.pathways.scheduling.handles import Fault
from model_server.pathways.scheduling.merging import Buffer
from sax.errors import InvalidRequest, SaxError, meaning

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
