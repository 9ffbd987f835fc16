"""Messages between a worker and its sidecar. Bodies hold functions and arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from model_server.pathways.scheduling.answers import Buffer


class SidecarPlace(msgspec.Struct, frozen=True, array_like=True, tag="place"):
    """A worker's first word: where its sidecar is."""

    devices: list[tuple[int, int]]  # number for clients and process of each of the island
    local: list[int]  # numbers of the worker's own


class SidecarStarted(msgspec.Struct, frozen=True, array_like=True, tag="started"):
    """The answer to SidecarPlace: functions are taken."""


class LoadFunction(msgspec.Struct, frozen=True, array_like=True, tag="load"):
    """A function to keep. Body: the function, pickled by its client."""

    number: int  # of the question
    function: int


class FunctionLoaded(msgspec.Struct, frozen=True, array_like=True, tag="loaded"):
    number: int


class DropFunction(msgspec.Struct, frozen=True, array_like=True, tag="drop"):
    """A function that its client lets go, after the calls before."""

    session: int
    function: int


class ForgetClient(msgspec.Struct, frozen=True, array_like=True, tag="forget"):
    """A client that is gone."""

    session: int


class HostShards(msgspec.Struct, frozen=True, array_like=True):
    """The parts of an array that are on one host; their bytes are in the body."""

    kind: int  # of IFRT's element types
    shape: list[int]  # of the whole array
    sizes: list[tuple[int, int]]  # device, bytes


class CallFunction(msgspec.Struct, frozen=True, array_like=True, tag="call"):
    """A function to run after those of the same session. Body: its arguments."""

    number: int
    session: int
    function: int
    arguments: list[HostShards]


class FunctionResult(msgspec.Struct, frozen=True, array_like=True, tag="result"):
    """The answer to CallFunction. Body: the arrays."""

    number: int
    arrays: list[HostShards]


class FunctionFailed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """The answer that says why there is no other; of number 0, to SidecarPlace."""

    number: int
    code: int
    text: str


Message = (
    SidecarPlace
    | SidecarStarted
    | LoadFunction
    | FunctionLoaded
    | DropFunction
    | ForgetClient
    | CallFunction
    | FunctionResult
    | FunctionFailed
)
DECODER = msgspec.msgpack.Decoder(Message)


class HostArray(msgspec.Struct, frozen=True):
    """The parts of an array that are on one host, with their bytes by device."""

    kind: int
    shape: tuple[int, ...]
    parts: Mapping[int, Buffer]


def packed(arrays: Sequence[HostArray]) -> tuple[list[HostShards], list[Buffer]]:
    """Return what to say of arrays, and the body."""
    said: list[HostShards] = []
    body: list[Buffer] = []
    for each in arrays:
        sizes = [(device, len(data)) for device, data in each.parts.items()]
        said.append(HostShards(each.kind, list(each.shape), sizes))
        body += each.parts.values()
    return said, body


def unpacked(said: Sequence[HostShards], body: memoryview) -> list[HostArray]:
    """Return the arrays of a body, without a copy."""
    found: list[HostArray] = []
    at = 0
    for each in said:
        parts: dict[int, Buffer] = {}
        for device, size in each.sizes:
            parts[device] = body[at : at + size]
            at += size
        found.append(HostArray(each.kind, tuple(each.shape), parts))
    return found
