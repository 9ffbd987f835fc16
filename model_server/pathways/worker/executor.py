"""Carries out the requests of all sessions on this process's devices."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from model_server.pathways.protocol.kinds import RESPONSES
from model_server.pathways.protocol.messages import IfrtResponse, StringArrayContents
from model_server.pathways.scheduling.custom_call import is_call
from model_server.pathways.scheduling.handles import Fault
from model_server.pathways.scheduling.options import add_options
from model_server.pathways.scheduling.refusals import refused
from model_server.pathways.worker import programs
from model_server.pathways.worker.arrays import Arrays, Held, host_bytes
from model_server.pathways.worker.calls import CallProgram, Calls, Python, Reader
from model_server.pathways.worker.devices import IslandDevices
from model_server.pathways.worker.dtypes import numpy_dtype
from model_server.pathways.worker.parcels import Parcel, Receiving, packed
from model_server.pathways.worker.pieces import ArrayPieces
from model_server.pathways.worker.programs import Program
from model_server.pathways.worker.shardings import Shardings
from model_server.pathways.worker.statuses import (
    Poisoned,
    RequestError,
    UnknownHandle,
    WrongRequest,
    fault_of,
    not_offered,
)
from model_server.pathways.worker.values import (
    ELSEWHERE,
    Arriving,
    ComingValues,
    Elsewhere,
    HeldElsewhere,
    HostCopy,
    Session,
    Strings,
    There,
    Value,
)
from model_server.pathways.worker.waiting import WaitingThread

log = logging.getLogger(__name__)

Buffers = Mapping[int, bytes | memoryview]
# Takes the response, or None where this host of an island has no part in it, and host buffers.
Answer = Callable[[Any | None, Buffers], None]
# The rest of a request, which waits: returns the host buffers that its answer brings.
Later = Callable[[], Buffers | None]
_COMPILE = "compile_request"
_COMPILERS = 2  # programs that are compiled at once


class NotHere(Exception):
    """Another host of the island answers this."""


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
        self._options = compile_options
        self._shardings = Shardings(devices)
        self._arrays = Arrays(devices, self._shardings)
        self._pieces = ArrayPieces(self._arrays)
        self._calls = Calls(devices, self._arrays, reader, python)
        self._sessions: dict[int, Session] = {}
        self._waiting: dict[int, WaitingThread] = {}
        self._compiling = ThreadPoolExecutor(_COMPILERS, thread_name_prefix="compile")
        self._kinds: dict[str, Callable[..., Later | None]] = {
            kind: getattr(self, f"_{kind.removesuffix('_request')}")
            for kind in RESPONSES
            if hasattr(self, f"_{kind.removesuffix('_request')}")
        }

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
        response.response_metadata.op_id = op_id = request.request_metadata.op_id
        try:
            if (carry_out := self._kinds.get(kind)) is None:
                raise not_offered(kind)
            told = getattr(response, RESPONSES[kind])
            told.SetInParent()
            of = self._session(session)
            later = carry_out(of, getattr(request, kind), told, made, buffers)
        except NotHere:
            answer(None, {})
        except Exception as exc:  # the edge: every request gets an answer
            answer(_failed(kind, op_id, exc), {})
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
                answer(_failed(kind, response.response_metadata.op_id, exc), {})
            else:
                answer(response, buffers or {})

        if kind == _COMPILE:
            self._compiling.submit(finish)
            return
        waits = self._waits(session)
        if isinstance(later, ComingValues):  # what comes must not hold up what is there
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
                _close(program)
            self._calls.forget(session)
        if (waiting := self._waiting.pop(session, None)) is not None:
            waiting.end()

    # Between islands

    def send(self, session: int, handle: int, deliver: Callable[[Parcel | Fault], None]) -> None:
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

    def _packed(self, array: jax.Array, fetch: HostCopy) -> Parcel | Fault:
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

    # Arrays

    def _make_array_from_host_buffer(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> None:
        handle = asked.array_handle if asked.HasField("array_handle") else made
        told.array_handle = handle

        def make() -> list[Held]:
            if (buffer := buffers.get(asked.host_buffer_handle)) is None:
                raise UnknownHandle(f"there is no host buffer {asked.host_buffer_handle:#x}")
            return [self._arrays.from_buffer(asked, buffer)]

        _store(of, [handle], make)

    def _make_arrays_from_host_buffer_shards(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> None:
        handles = _handles(asked.array_handles, len(asked.specs), made)
        told.array_handles.extend(handles)
        _store(
            of, handles, lambda: [self._arrays.from_shards(each, buffers) for each in asked.specs]
        )

    def _make_error_arrays(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> None:
        handles = _handles(asked.array_handles, len(asked.array_specs), made)
        told.array_handles.extend(handles)
        of.poison(handles, Fault(asked.error.code, asked.error.message))

    def _assemble_array_from_single_device_arrays(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> None:
        handle = asked.result_handle or made
        told.array_handle = handle
        dtype = numpy_dtype(asked.dtype.kind) if asked.HasField("dtype") else None
        shape = tuple(asked.shape.dims)

        def make() -> list[Held]:
            parts = _parts(of, asked.single_device_array_handles)
            return [self._arrays.assembled(shape, dtype, asked.sharding, parts)]

        _store(of, [handle], make)

    def _disassemble_into_single_device_arrays(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> None:
        (value,) = of.known([asked.array_handle])
        if isinstance(value, Arriving):
            value = value.get() if value.come or not asked.result_handles else value
        if isinstance(value, Elsewhere):
            of.arrays.update(dict.fromkeys(asked.result_handles, value))
            raise NotHere
        if isinstance(value, Fault) and not asked.result_handles:
            raise Poisoned(value)
        parts = self._pieces.parts(value, len(asked.result_handles))
        handles = _handles(asked.result_handles, len(parts), made)
        of.arrays.update(zip(handles, parts, strict=True))
        told.array_handles.extend(handles)

    def _fully_replicated_shard(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> None:
        handle = asked.result_handle or made
        told.array_handle = handle
        (value,) = of.known([asked.array_handle])
        _store(of, [handle], lambda: [self._pieces.replica(value)])

    def _copy_arrays(self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers) -> None:
        handles = _handles(asked.result_handles, len(asked.array_handles), made)
        told.array_handles.extend(handles)
        _store(of, handles, lambda: self._arrays.copied(of.held(asked.array_handles), asked))

    def _reshard_arrays(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> None:
        handles = _handles(asked.result_handles, len(asked.array_handles), made)
        told.array_handles.extend(handles)
        each = zip(asked.array_handles, asked.array_specs, strict=True)
        how = asked.copy_semantics
        _store(
            of,
            handles,
            lambda: [self._arrays.resharded(of.array(one), spec, how) for one, spec in each],
        )

    def _bitcast_arrays(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> None:
        handles = _handles(asked.result_handles, len(asked.array_handles), made)
        told.array_handles.extend(handles)
        each = zip(asked.array_handles, asked.array_specs, strict=True)
        _store(
            of, handles, lambda: [self._arrays.bitcast(of.array(one), spec) for one, spec in each]
        )

    def _remap_arrays(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> None:
        handles = _handles(asked.result_handles, len(asked.plan.output_specs), made)
        told.array_handles.extend(handles)
        _store(of, handles, lambda: self._arrays.remapped(of.held(asked.array_handles), asked.plan))

    def _copy_to_host_buffer(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> Later:
        (value,) = of.known([asked.array_handle])
        if isinstance(value, Elsewhere):
            raise NotHere
        if isinstance(value, Fault):
            raise Poisoned(value)
        if isinstance(value, jax.Array):
            value.copy_to_host_async()
        fetch = of.fetching(asked.array_handle)

        def later() -> Buffers:
            with fetch:
                there = value.get() if isinstance(value, Arriving) else value
                return {asked.host_buffer_handle: _fetched(there, asked)}

        return ComingValues([value], later)

    def _check_value_ready(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> Later | None:
        return ComingValues(of.known(asked.value_handles))

    def _check_future(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> Later | None:
        return _waited(of, asked.future_handle)

    def _delete_array(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> None:
        """Handle 0 is a future that is ready."""
        for handle in asked.array_handle:
            value = of.value(handle)
            if isinstance(value, jax.Array):
                of.fetched(handle)
                value.delete()

    def _is_array_deleted(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> None:
        value = of.value(asked.array_handle)
        if isinstance(value, Elsewhere):
            raise NotHere
        told.deleted = isinstance(value, jax.Array) and value.is_deleted()

    def _destruct_array(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> None:
        for handle in asked.array_handle:
            of.arrays.pop(handle, None)

    # Programs

    def _compile(self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers) -> Later:
        if is_call(asked):
            return lambda: self._compile_call(of, asked, told, made)
        if self._options:
            add_options(asked, self._options)
        source = programs.source(asked, self._devices)

        def later() -> None:
            program = programs.compiled(source, self._devices.client)
            self._compiled(of, program, program.module.name, told, made)
            told.fingerprint_value = program.executable.fingerprint or b""

        return later

    def _compile_call(self, of: Session, asked: Any, told: Any, made: int) -> None:
        program = self._calls.program(of, asked)
        if of.ended.is_set():
            program.close()
        self._compiled(of, program, program.name, told, made)

    def _compiled(
        self, of: Session, program: Program | CallProgram, name: str, told: Any, made: int
    ) -> None:
        of.programs[made] = program
        told.loaded_executable_handle = made
        told.name = name
        numbers = self._devices.numbers(program.devices)
        told.num_devices = len(numbers)
        told.device_ids.extend(numbers)
        told.addressable_device_ids.extend(numbers)

    def _loaded_executable_metadata(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> None:
        program: Program = of.program(asked.loaded_executable_handle)
        if isinstance(program, CallProgram):
            told.donated_input_indices.SetInParent()
            return
        executable, module = program.executable, program.module
        for shardings, into in (
            (executable.get_parameter_shardings(), told.parameter_shardings),
            (executable.get_output_shardings(), told.output_shardings),
        ):
            for each in shardings or ():
                into.shardings.add().ParseFromString(each.SerializeToString())
        shape = module.host_program_shape
        results = shape.result.tuple_shapes or [shape.result]
        told.parameter_layouts_list.layouts.extend(each.layout for each in shape.parameters)
        told.output_layouts_list.layouts.extend(each.layout for each in results)
        for kinds in executable.get_output_memory_kinds():
            told.output_memory_kinds.memory_kind_lists.add(memory_kinds=kinds)
        told.donated_input_indices.donated_input_indices.extend(sorted(program.donated))
        told.compiled_memory_stats.CopyFrom(program.memory_stats)
        told.size_of_generated_code_in_bytes = executable.size_of_generated_code_in_bytes()

    def _loaded_executable_execute(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> None:
        program: Program | CallProgram = of.program(asked.loaded_executable_handle)
        if asked.loaded_executable_handle in of.deleted:
            raise WrongRequest("the program was deleted; compile it again")
        options = asked.execute_options
        handles = asked.result_array_handle
        status = (asked.result_status_handle or made) if options.fill_status else 0
        if not handles:
            handles = range(made + 1, made + 1 + len(program.avals))
            for handle, (kind, shape, sharding) in zip(
                handles, _outputs(program, self._shardings), strict=True
            ):
                one = told.outputs.add(array_handle=handle, sharding=sharding)
                one.dtype.kind = kind
                one.shape.dims.extend(shape)
        told.status_handle = status

        def make() -> Sequence[Value]:
            if not program.here:
                return [ELSEWHERE] * len(program.avals)
            arguments = of.held(asked.args_handles)
            if isinstance(program, CallProgram):
                return program.begin(of, arguments, list(map(of.fetching, asked.args_handles)))
            for place in options.non_donatable_input_indices:
                if place in program.donated:
                    arguments[place] = self._arrays.undonated(arguments[place])
            of.fetched(*(asked.args_handles[place] for place in program.donated))
            return program.run(arguments, options.launch_id)

        results = _store(of, handles, make)
        if status:
            of.futures[status] = results

    def _loaded_executable_fetch_execute_result(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> Later | None:
        """Devices here do not tell their times."""
        return _waited(of, asked.result_status_handle)

    def _loaded_executable_cost_analysis(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> None:
        costs = of.program(asked.loaded_executable_handle).executable.cost_analysis()
        told.attributes.SetInParent()
        for name, value in costs.items():
            told.attributes.attributes[name].float_value = value

    def _loaded_executable_human_readable_program_text(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> None:
        program = of.program(asked.loaded_executable_handle)
        told.human_readable_program_text = program.executable.get_hlo_text()

    def _loaded_executable_delete(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> None:
        of.program(asked.loaded_executable_handle)
        of.deleted.add(asked.loaded_executable_handle)

    def _loaded_executable_is_deleted(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> None:
        told.is_deleted = asked.loaded_executable_handle in of.deleted

    def _loaded_executable_destruct(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> None:
        _close(of.programs.pop(asked.loaded_executable_handle, None))
        of.deleted.discard(asked.loaded_executable_handle)

    def _get_default_device_assignment(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> None:
        replicas, partitions = asked.num_replicas, asked.num_partitions
        if replicas * partitions > len(self._devices):
            raise WrongRequest(
                f"{replicas} replicas of {partitions} devices are more than the "
                f"{len(self._devices)} of this island"
            )
        numbers = self._devices.numbers(self._devices.every[: replicas * partitions])
        told.device_assignment.replica_count = replicas
        told.device_assignment.computation_count = partitions
        for place in range(partitions):
            each = numbers[place::partitions]
            told.device_assignment.computation_devices.add(replica_device_ids=each)

    def _get_default_layout(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> None:
        device = self._devices.device(asked.device_id)
        dtype = numpy_dtype(asked.dtype.kind)
        layout = device.client.get_default_layout(dtype, tuple(asked.dims), device)
        (told.serialized_pjrt_layout,) = layout.__getstate__()


def _outputs(program: Program | CallProgram, shardings: Shardings) -> Any:
    return program.outputs() if isinstance(program, CallProgram) else program.outputs(shardings)


def _close(program: Any) -> None:
    if isinstance(program, CallProgram):
        program.close()


def _handles(told: Any, count: int, made: int) -> list[int]:
    """Return the handles that the client chose, or the next ones of ours."""
    if told and len(told) != count:
        raise WrongRequest(f"{len(told)} handles for {count} arrays")
    return list(told) or list(range(made, made + count))


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


def _store(of: Session, handles: Any, make: Callable[[], Sequence[Any]]) -> Sequence[Value]:
    """Make arrays under handles; where that fails, each stands for the error.

    The client goes on before it hears of this, and finds the error where it waits.
    """
    try:
        values: Sequence[Value] = make()
        if len(values) != len(handles):
            raise WrongRequest(f"{len(handles)} handles for {len(values)} arrays")
    except NotHere:
        raise
    except HeldElsewhere:
        values = [ELSEWHERE] * len(handles)
    except Exception as exc:
        values = [fault_of(exc)] * len(handles)
        if not isinstance(exc, Poisoned | RequestError):
            log.warning("arrays could not be made: %s", exc)
    of.arrays.update(zip(handles, values, strict=True))
    return values


def _parts(of: Session, handles: Any) -> list[Held]:
    """Raises Poisoned if one could not be made."""
    parts: list[Held] = []
    for handle in handles:
        value = of.value(handle)
        if isinstance(value, Fault):
            raise Poisoned(value)
        if isinstance(value, Strings):
            raise WrongRequest("strings are put together with nothing")
        parts.append(value)
    return parts


def _waited(of: Session, future: int) -> Later | None:
    """Take a future out, and return what waits for it; None: it is ready."""
    values = of.futures.pop(future, ())
    return ComingValues(values) if values else None


def _failed(kind: str, op_id: int, exc: BaseException) -> Any:
    """Return the IfrtResponse with the error."""
    if not isinstance(exc, RequestError | Poisoned):
        log.warning("%s failed: %s", kind, exc)
    return refused(op_id, fault_of(exc))
