"""A sidecar: runs functions of clients, pickled code that may do anything, for its worker.

It is a separate process for three reasons. Functions name devices by their clients' numbers, and
only a CPU backend made for it numbers its devices so. They share an interpreter with each other,
and would otherwise share one with the arrays of all clients. And one that crashes or runs for ever
must not take down the island.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.experimental.colocated_python import serialization
from jax.extend import backend
from jaxlib import _pathways  # pyright: ignore[reportAttributeAccessIssue]

from model_server.pathways.link.connection import Connection, Listener
from model_server.pathways.scheduling.answers import Buffer
from model_server.pathways.scheduling.handles import INVALID
from model_server.pathways.sidecar import messages
from model_server.pathways.sidecar.messages import HostArray, SidecarPlace
from model_server.pathways.worker.arrays import host_bytes
from model_server.pathways.worker.dtypes import STRING, ifrt_kind, numpy_dtype
from model_server.pathways.worker.waiting import WaitingThread
from sax.errors import InvalidRequest, SaxError
from sax.host import xla_threads

logger = logging.getLogger(__name__)

_PLATFORM = "beside"
Peer = Connection[messages.Message]
_UNKNOWN = 2  # code of an error that the function raised
_LOADS = 0  # the thread that unpickles; sessions are never 0


@dataclass(frozen=True, slots=True)
class ClientFunction:
    """A function with the arrays that it takes and makes."""

    call: Any
    takes: Any  # tree of (args, kwargs)
    arguments: Sequence[jax.ShapeDtypeStruct]
    makes: Any
    results: Sequence[jax.ShapeDtypeStruct]


class Functions:
    """The functions of one sidecar. Thread-safe, once started."""

    def __init__(self) -> None:
        self._place: SidecarPlace | None = None

    def start(self, place: SidecarPlace) -> None:
        """Make jax's devices those of the island. Raises InvalidRequest if they are others."""
        if self._place is None:
            self._place = place
            os.environ.setdefault("NPROC", str(xla_threads(len(place.devices))))
            backend.register_backend_factory(_PLATFORM, lambda: _client(place), priority=1000)
            jax.config.update("jax_platforms", _PLATFORM)
            jax.devices()
        if self._place != place:
            raise InvalidRequest("this sidecar was started for other devices")

    def load(self, text: bytes) -> ClientFunction:
        """Unpickle a function: this runs code of its client. Raises what that raises."""
        call, takes, arguments, makes, results, _ = serialization._deserialize(text)
        return ClientFunction(call, takes, arguments, makes, results)

    def run(self, function: ClientFunction, given: Sequence[HostArray]) -> list[HostArray]:
        """Call a function. Raises its exceptions, and InvalidRequest for undeclared results."""
        arguments = [_array(*each) for each in zip(function.arguments, given, strict=True)]
        args, kwargs = jax.tree.unflatten(function.takes, arguments)
        made, tree = jax.tree.flatten(function.call(*args, **kwargs))
        if tree != function.makes:
            raise InvalidRequest(f"it returned {tree}, and {function.makes} was declared")
        return [_host_array(*each) for each in zip(made, function.results, strict=True)]


def _client(place: SidecarPlace) -> Any:
    return _pathways._create_cpu_client(set(place.local), dict(place.devices))


def _array(spec: jax.ShapeDtypeStruct, given: HostArray) -> jax.Array:
    """Return an argument on this process's devices. Raises InvalidRequest."""
    dtype, sharding = numpy_dtype(given.kind), spec.sharding
    if (given.shape, dtype) != (spec.shape, spec.dtype) or sharding is None:
        raise InvalidRequest(f"{dtype}{list(given.shape)} for {spec.dtype}{list(spec.shape)}")
    shape = sharding.shard_shape(spec.shape)
    parts = [
        jax.device_put(np.ndarray(shape, dtype, given.parts[device.id]), device)
        for device in sharding._device_assignment
        if device.id in given.parts
    ]
    return jax.make_array_from_single_device_arrays(spec.shape, sharding, parts)


def _host_array(made: Any, spec: jax.ShapeDtypeStruct) -> HostArray:
    """Return a result as its client expects it. Raises InvalidRequest."""
    if not isinstance(made, jax.Array):
        raise InvalidRequest(f"it returned a {type(made).__name__}: return arrays of jax")
    shards: Mapping[int, np.ndarray] = {
        shard.device.id: np.asarray(shard.data) for shard in made.addressable_shards
    }
    if made.dtype == np.dtypes.StringDType():
        return HostArray(STRING, made.shape, {at: _text(each) for at, each in shards.items()})
    like = (made.shape, made.dtype) == (spec.shape, spec.dtype)
    if not (like and made.sharding.is_equivalent_to(spec.sharding, made.ndim)):
        raise InvalidRequest(
            f"it returned {made.dtype}{list(made.shape)} in {made.sharding}, and "
            f"{spec.dtype}{list(spec.shape)} in {spec.sharding} was declared"
        )
    kind = ifrt_kind(made.dtype)
    parts = {at: host_bytes(each, None) for at, each in shards.items()}
    return HostArray(kind, made.shape, parts)


def _text(array: np.ndarray) -> bytes:
    """Return the one string of an array: specifications of results are told so."""
    if array.ndim:
        raise InvalidRequest("it returned several strings: return numbers")
    return str(array.item()).encode()


class _WorkerPeer:
    """One worker's connection: its functions, and a thread per client."""

    def __init__(self) -> None:
        self.functions: dict[int, ClientFunction] = {}
        self.threads: dict[int, WaitingThread] = {}

    def thread(self, session: int) -> WaitingThread:
        if session not in self.threads:
            self.threads[session] = WaitingThread(f"functions of {session:x}")
        return self.threads[session]

    def drop(self, session: int, function: int) -> None:
        """Let a function go after the calls before: it may hold what another one needs."""

        def drop() -> None:
            self.functions.pop(function, None)

        if (thread := self.threads.get(session)) is None:
            drop()
        else:
            thread.run(drop)

    def forget(self, session: int) -> None:
        if (thread := self.threads.pop(session, None)) is not None:
            thread.end()

    def close(self) -> None:
        self.functions.clear()
        for thread in self.threads.values():
            thread.end()


class SidecarListener(Listener[messages.Message]):
    """The worker connects here. Functions of one client run one after the other."""

    def __init__(self, end: Callable[[], None]) -> None:
        """end: called when this process cannot have the devices that a worker asks for."""
        super().__init__(messages.DECODER)
        self._end = end
        self._functions = Functions()
        self._workers: dict[Peer, _WorkerPeer] = {}
        self._loop = asyncio.get_running_loop()

    def opened(self, peer: Peer) -> None:
        super().opened(peer)
        self._workers[peer] = _WorkerPeer()

    def ended(self, peer: Peer) -> None:
        super().ended(peer)
        self._workers.pop(peer).close()

    def received(self, peer: Peer, message: messages.Message, body: memoryview) -> None:
        worker = self._workers[peer]
        match message:
            case messages.SidecarPlace():
                self._start(peer, message)
            case messages.LoadFunction(number, function):
                text = bytes(body)
                worker.thread(_LOADS).run(lambda: self._load(peer, worker, number, function, text))
            case messages.CallFunction(session=session, function=number):
                function = worker.functions[number]  # until it has run, even if it is dropped
                worker.thread(session).run(lambda: self._call(peer, function, message, body))
            case messages.DropFunction(session, number):
                worker.drop(session, number)
            case messages.ForgetClient(session):
                worker.forget(session)
            case _:
                peer.close()

    def _start(self, peer: Peer, place: messages.SidecarPlace) -> None:
        try:
            self._functions.start(place)
        except SaxError as error:
            logger.warning("%s: this process ends, to be started again", error.text)
            self._end()
        else:
            peer.send(messages.SidecarStarted())

    # On threads

    def _load(
        self, peer: Peer, worker: _WorkerPeer, number: int, function: int, text: bytes
    ) -> None:
        try:
            worker.functions[function] = self._functions.load(text)
        except BaseException as exc:  # code of a client
            self._send(peer, _failed(number, exc))
        else:
            self._send(peer, messages.FunctionLoaded(number))

    def _call(
        self, peer: Peer, function: ClientFunction, call: messages.CallFunction, body: memoryview
    ) -> None:
        try:
            given = messages.unpacked(call.arguments, body)
            said, parts = messages.packed(self._functions.run(function, given))
        except BaseException as exc:  # code of a client
            self._send(peer, _failed(call.number, exc))
        else:
            self._send(peer, messages.FunctionResult(call.number, said), parts)

    def _send(self, peer: Peer, message: Any, parts: list[Buffer] | None = None) -> None:
        self._loop.call_soon_threadsafe(peer.send, message, parts or [])


def _failed(number: int, error: BaseException) -> messages.FunctionFailed:
    if isinstance(error, SaxError):
        return messages.FunctionFailed(number, INVALID, error.text)
    return messages.FunctionFailed(number, _UNKNOWN, f"{type(error).__name__}: {error}")
