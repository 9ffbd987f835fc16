"""Carries out the requests of all sessions on this process's devices.

Requests on arrays are here, those on programs in `program_requests`; handler methods have the names
of the kinds of requests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from model_server.pathways.protocol import RESPONSES, IfrtResponse, StringArrayContents
from model_server.pathways.scheduling.answers import refused
from model_server.pathways.scheduling.handles import Fault
from model_server.pathways.worker.arrays import Arrays, Held, host_bytes
from model_server.pathways.worker.calls import Calls, Python, Reader
from model_server.pathways.worker.devices import IslandDevices
from model_server.pathways.worker.dtypes import numpy_dtype
from model_server.pathways.worker.executor_thread import Answer, TransferPart
from model_server.pathways.worker.program_requests import ProgramRequests
from model_server.pathways.worker.shardings import Shardings
from model_server.pathways.worker.statuses import (
    Poisoned,
    RequestError,
    UnknownHandle,
    WrongRequest,
    fault_of,
    not_offered,
)
from model_server.pathways.worker.transfers import Receiving, packed
from model_server.pathways.worker.values import (
    Arriving,
    Buffers,
    ComingValues,
    Elsewhere,
    HostCopy,
    Later,
    NotHere,
    RequestTask,
    Session,
    Strings,
    There,
    Value,
)
from model_server.pathways.worker.waiting import WaitingThread

log = logging.getLogger(__name__)

_COMPILE = "compile_request"
_COMPILERS = 2  # programs that are compiled at once


class ArrayPieces:
    """Takes arrays apart, without waiting for those that are still to arrive."""

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays

    def replica(self, value: Value) -> Value:
        """Return a single-device array of a replicated one."""
        if isinstance(value, Arriving):
            return _derived(value, self._replica_there)
        return self._replica_there(value)

    def _replica_there(self, value: There) -> There:
        if isinstance(value, Strings):
            return Strings(value.data, 1)
        return self._arrays.replica(value) if isinstance(value, jax.Array) else value

    def parts(self, value: Value, count: int) -> Sequence[Value]:
        """Return the single-device arrays of a value. count: of those that it should have."""
        match value:
            case Strings(data, devices):
                return [Strings(data, 1)] * devices
            case Arriving():
                return self._parts_later(value, count)
            case jax.Array():
                return self._arrays.disassembled(value)
            case _:
                return [value] * count

    def _parts_later(self, coming: Arriving, count: int) -> Sequence[Value]:
        parts = [Arriving() for _ in range(count)]

        def come() -> None:
            try:
                found = self.parts(coming.get(), count)
                if len(found) != count:
                    raise WrongRequest(f"{count} handles for {len(found)} arrays")
            except Exception as exc:
                found = [fault_of(exc)] * count
            for part, value in zip(parts, found, strict=True):
                assert not isinstance(value, Arriving)
                part.set(value)

        coming.then(come)
        return parts


def _derived(coming: Arriving, how: Callable[[There], There]) -> Arriving:
    """Return the value that will be made of one that arrives later."""
    made = Arriving()

    def come() -> None:
        try:
            made.set(how(coming.get()))
        except Exception as exc:
            made.set(fault_of(exc))

    coming.then(come)
    return made


class ArrayRequests:
    """Each method takes one request; the part that waits is returned, to be called later."""

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays
        self._pieces = ArrayPieces(arrays)

    def make_array_from_host_buffer(self, task: RequestTask) -> None:
        asked = task.request
        handle = asked.array_handle if asked.HasField("array_handle") else task.made
        task.response.array_handle = handle

        def make() -> list[Held]:
            if (buffer := task.buffers.get(asked.host_buffer_handle)) is None:
                raise UnknownHandle(f"there is no host buffer {asked.host_buffer_handle:#x}")
            return [self._arrays.from_buffer(asked, buffer)]

        task.session.store([handle], make)

    def make_arrays_from_host_buffer_shards(self, task: RequestTask) -> None:
        specs, buffers = task.request.specs, task.buffers
        handles = task.results(task.request.array_handles, len(specs))
        task.session.store(handles, lambda: [self._arrays.from_shards(x, buffers) for x in specs])

    def make_error_arrays(self, task: RequestTask) -> None:
        asked = task.request
        handles = task.results(asked.array_handles, len(asked.array_specs))
        task.session.poison(handles, Fault(asked.error.code, asked.error.message))

    def assemble_array_from_single_device_arrays(self, task: RequestTask) -> None:
        asked = task.request
        task.response.array_handle = handle = asked.result_handle or task.made
        dtype = numpy_dtype(asked.dtype.kind) if asked.HasField("dtype") else None
        shape = tuple(asked.shape.dims)

        def make() -> list[Held]:
            parts = task.session.parts(asked.single_device_array_handles)
            return [self._arrays.assembled(shape, dtype, asked.sharding, parts)]

        task.session.store([handle], make)

    def disassemble_into_single_device_arrays(self, task: RequestTask) -> None:
        chosen = task.request.result_handles
        (value,) = task.session.known([task.request.array_handle])
        if isinstance(value, Arriving):
            value = value.get() if value.come or not chosen else value
        if isinstance(value, Elsewhere):
            task.session.arrays.update(dict.fromkeys(chosen, value))
            raise NotHere
        if isinstance(value, Fault) and not chosen:
            raise Poisoned(value)
        parts = self._pieces.parts(value, len(chosen))
        task.session.arrays.update(zip(task.results(chosen, len(parts)), parts, strict=True))

    def fully_replicated_shard(self, task: RequestTask) -> None:
        task.response.array_handle = handle = task.request.result_handle or task.made
        (value,) = task.session.known([task.request.array_handle])
        task.session.store([handle], lambda: [self._pieces.replica(value)])

    def copy_arrays(self, task: RequestTask) -> None:
        asked, of = task.request, task.session
        handles = task.results(asked.result_handles, len(asked.array_handles))
        of.store(handles, lambda: self._arrays.copied(of.held(asked.array_handles), asked))

    def reshard_arrays(self, task: RequestTask) -> None:
        how = task.request.copy_semantics
        self._from_each(task, lambda array, spec: self._arrays.resharded(array, spec, how))

    def bitcast_arrays(self, task: RequestTask) -> None:
        self._from_each(task, self._arrays.bitcast)

    def _from_each(self, task: RequestTask, make: Callable[[jax.Array, Any], Held]) -> None:
        """Make an array of each array and ArraySpecProto of a request."""
        asked, of = task.request, task.session
        handles = task.results(asked.result_handles, len(asked.array_handles))
        each = zip(asked.array_handles, asked.array_specs, strict=True)
        of.store(handles, lambda: [make(of.array(one), spec) for one, spec in each])

    def remap_arrays(self, task: RequestTask) -> None:
        asked, of = task.request, task.session
        handles = task.results(asked.result_handles, len(asked.plan.output_specs))
        of.store(handles, lambda: self._arrays.remapped(of.held(asked.array_handles), asked.plan))

    def copy_to_host_buffer(self, task: RequestTask) -> Later:
        asked = task.request
        (value,) = task.session.known([asked.array_handle])
        if isinstance(value, Elsewhere):
            raise NotHere
        if isinstance(value, Fault):
            raise Poisoned(value)
        if isinstance(value, jax.Array):
            value.copy_to_host_async()
        fetch = task.session.fetching(asked.array_handle)

        def later() -> Buffers:
            with fetch:
                there = value.get() if isinstance(value, Arriving) else value
                return {asked.host_buffer_handle: _fetched(there, asked)}

        return ComingValues([value], later)

    def check_value_ready(self, task: RequestTask) -> Later:
        return ComingValues(task.session.known(task.request.value_handles))

    def check_future(self, task: RequestTask) -> Later | None:
        return task.session.waited(task.request.future_handle)

    def delete_array(self, task: RequestTask) -> None:
        """The answer's handle of 0 is a future that is ready."""
        for handle in task.request.array_handle:
            value = task.session.value(handle)
            if isinstance(value, jax.Array):
                task.session.fetched(handle)
                value.delete()

    def is_array_deleted(self, task: RequestTask) -> None:
        value = task.session.value(task.request.array_handle)
        if isinstance(value, Elsewhere):
            raise NotHere
        task.response.deleted = isinstance(value, jax.Array) and value.is_deleted()

    def destruct_array(self, task: RequestTask) -> None:
        for handle in task.request.array_handle:
            task.session.arrays.pop(handle, None)


def _fetched(value: There, asked: Any) -> bytes | memoryview:
    """Return what a CopyToHostBufferRequest asks for."""
    if isinstance(value, Elsewhere):
        raise NotHere
    if isinstance(value, Fault):
        raise Poisoned(value)
    if isinstance(value, Strings):
        return StringArrayContents(strings=[value.data]).SerializeToString()
    strides = tuple(asked.byte_strides.strides) if asked.HasField("byte_strides") else None
    return host_bytes(np.asarray(value), strides)


class Executor:
    """One per process. `execute`, `send`, `receive` and `forget` are called by one thread."""

    def __init__(
        self,
        devices: IslandDevices,
        compile_options: Mapping[str, str] = MappingProxyType({}),
        reader: Reader | None = None,
        python: Python | None = None,
    ) -> None:
        """compile_options: by name, for all programs that do not set them.

        reader: of weights for clients. python: runs functions of clients.
        """
        self._devices = devices
        shardings = Shardings(devices)
        self._arrays = Arrays(devices, shardings)
        self._calls = Calls(devices, self._arrays, reader, python)
        self._sessions: dict[int, Session] = {}
        self._waiting: dict[int, WaitingThread] = {}
        self._compiling = ThreadPoolExecutor(_COMPILERS, thread_name_prefix="compile")
        self._kinds = _offered(
            ArrayRequests(self._arrays),
            ProgramRequests(devices, shardings, self._arrays, self._calls, compile_options),
        )

    @property
    def kinds(self) -> frozenset[str]:
        """Kinds of requests that are carried out; others are refused in words."""
        return frozenset(self._kinds)

    def describe(self) -> Any:
        """Return the InitResponse of a client that has these devices only, without a session."""
        return self._devices.described()

    def execute(
        self, session: int, request: Any, made: int, buffers: Buffers, answer: Answer
    ) -> None:
        """Begin one request; its answer may come at once, or later from another thread.

        made: the first of the handles that this request may give out.
        """
        kind = request.WhichOneof("request") or ""
        response = IfrtResponse()
        try:
            if (carry_out := self._kinds.get(kind)) is None:
                raise not_offered(kind)
            body = getattr(response, RESPONSES[kind])
            body.SetInParent()
            of = self._session(session)
            later = carry_out(RequestTask(of, getattr(request, kind), body, made, buffers))
        except NotHere:
            answer(None, {})
        except Exception as exc:  # the edge: every request gets an answer
            answer(_failed(kind, exc), {})
        else:
            if later is None:
                answer(response, {})
            else:
                self._finish(session, kind, later, response, answer)

    def _finish(self, session: int, kind: str, later: Later, response: Any, answer: Answer) -> None:
        def finish() -> None:
            try:
                buffers = later()
            except NotHere:
                answer(None, {})
            except BaseException as exc:
                answer(_failed(kind, exc), {})
            else:
                answer(response, buffers or {})

        if kind == _COMPILE:
            self._compiling.submit(finish)
            return
        waits = self._waits(session)
        if isinstance(later, ComingValues):  # later values must not hold up those that are there
            later.then(lambda: waits.run(finish))
        else:
            waits.run(finish)

    def _session(self, number: int) -> Session:
        if number not in self._sessions:
            self._sessions[number] = Session(number)
        return self._sessions[number]

    def _waits(self, session: int) -> WaitingThread:
        if session not in self._waiting:
            self._waiting[session] = WaitingThread(f"session {session}")
        return self._waiting[session]

    def forget(self, session: int) -> None:
        """Free all that a session holds."""
        if (of := self._sessions.pop(session, None)) is not None:
            of.ended.set()
            for program in of.programs.values():
                program.close()
            self._calls.forget(session)
        if (waiting := self._waiting.pop(session, None)) is not None:
            waiting.end()

    # Between islands

    def send(
        self, session: int, handle: int, deliver: Callable[[TransferPart | Fault], None]
    ) -> None:
        """Hand over the shards of an array that are here, when it is ready, on another thread."""
        of = self._session(session)
        try:
            value = of.value(handle)
        except UnknownHandle as exc:
            value = exc.fault
        if isinstance(value, Strings):
            value = WrongRequest("a string goes to no other island").fault
        if isinstance(value, Fault):
            deliver(value)
        elif not isinstance(value, Elsewhere):
            fetch = of.fetching(handle)
            self._waits(session).run(lambda: deliver(self._packed(value, fetch)))

    def _packed(self, array: jax.Array, fetch: HostCopy) -> TransferPart | Fault:
        with fetch:
            try:
                return packed(array, self._arrays)
            except Exception as exc:
                return fault_of(exc)

    def receive(
        self, session: int, handle: int, device_ids: Sequence[int], memory_kind: str | None
    ) -> Receiving:
        """Store what will arrive under a handle; what needs it waits. Raises WrongRequest."""
        receiving = Receiving(self._arrays, self._devices.devices(device_ids), memory_kind)
        self._session(session).arrays[handle] = receiving.value
        return receiving


def _failed(kind: str, exc: BaseException) -> Any:
    """Return the IfrtResponse of an error."""
    if not isinstance(exc, RequestError | Poisoned):
        log.warning("%s failed: %s", kind, exc)
    return refused(0, fault_of(exc))  # ExecutorThread sets the op_id of all answers


def _offered(*handlers: Any) -> Mapping[str, Callable[[RequestTask], Later | None]]:
    """Return the method that carries out each kind of request that is offered."""
    names = {kind: kind.removesuffix("_request") for kind in RESPONSES}
    return {
        kind: getattr(handler, name)
        for kind, name in names.items()
        for handler in handlers
        if hasattr(handler, name)
    }
