"""The gRPC service that jaxlib's client calls: versions, sessions and host buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from model_server.pathways.http2.call import GrpcCall
from model_server.pathways.http2.connection import OpenCall
from model_server.pathways.protocol import messages
from model_server.pathways.proxy.buffer_calls import LookUpCall, StoreCall
from model_server.pathways.proxy.front import Front
from model_server.pathways.proxy.greeting import agreed, parsed
from model_server.pathways.proxy.session_call import SessionCall
from sax.errors import UnsupportedParameter

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
