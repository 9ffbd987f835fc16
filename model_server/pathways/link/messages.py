"""Messages between proxy servers and workers, and among workers. Bodies hold the large parts."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from model_server.pathways.scheduling.answers import Buffer


class Hail(msgspec.Struct, frozen=True, array_like=True, tag="hail"):
    """The first message of a proxy server to a worker."""

    incarnation: str  # of the worker that it expects


class Described(msgspec.Struct, frozen=True, array_like=True, tag="described"):
    """A worker's answer to Hail. Body: its InitResponse."""

    incarnation: str


class RunRequest(msgspec.Struct, frozen=True, array_like=True, tag="run"):
    """A request to execute. Body: the IfrtRequest, then its host buffers."""

    number: int
    session: int
    made: int
    request: int  # bytes
    buffers: list[tuple[int, int]]  # handle, bytes


class RunResponse(msgspec.Struct, frozen=True, array_like=True, tag="told"):
    """The answer to RunRequest. Body: the IfrtResponse, then the host buffers that it fills."""

    number: int
    response: int  # bytes; 0: this host has no part in the answer
    buffers: list[tuple[int, int]]


class Forget(msgspec.Struct, frozen=True, array_like=True, tag="forget"):
    session: int


class Ship(msgspec.Struct, frozen=True, array_like=True, tag="ship"):
    """An array to send to other workers, under a transfer's number."""

    session: int
    array: int
    transfer: int
    addresses: list[str]


class Expect(msgspec.Struct, frozen=True, array_like=True, tag="expect"):
    """An array that other workers send, to be made under a handle."""

    session: int
    handle: int
    transfer: int
    devices: list[int]
    memory_kind: str


class Shipped(msgspec.Struct, frozen=True, array_like=True, tag="shipped"):
    """The shards of a transfer have left a worker; or why not."""

    transfer: int
    code: int = 0
    text: str = ""


class Arrived(msgspec.Struct, frozen=True, array_like=True, tag="arrived"):
    """The array of a transfer, or its error, is under its handle."""

    transfer: int


class TransferHead(msgspec.Struct, frozen=True, array_like=True, tag="parcel"):
    """One host's shards of an array. Body: their bytes, one after the other."""

    transfer: int
    kind: int = 0  # of IFRT's dtypes
    shape: list[int] = []  # of the whole array
    division: bytes = b""  # its OpSharding
    shards: list[tuple[int, int]] = []  # place among the devices of its sharding, bytes
    code: int = 0  # of a fault in place of the shards
    text: str = ""


Message = (
    Hail
    | Described
    | RunRequest
    | RunResponse
    | Forget
    | Ship
    | Shipped
    | Expect
    | Arrived
    | TransferHead
)
DECODER = msgspec.msgpack.Decoder(Message)


def cut(body: memoryview, at: int, lengths: Iterable[tuple[int, int]]) -> dict[int, Buffer]:
    """Return the parts of a body by their handles, without a copy."""
    found: dict[int, Buffer] = {}
    for handle, length in lengths:
        found[handle] = body[at : at + length]
        at += length
    return found
