"""Compiles clients' programs for an island's devices, and runs them.

With jax's persistent cache (JAX_COMPILATION_CACHE_DIR) a program is compiled once: an island that
returns, and a client that starts again, find it there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jaxlib._jax as _jax
import numpy as np
from jax._src.compiler import compile_or_get_cached
from jax._src.interpreters.mlir import make_ir_context
from jax._src.interpreters.pxla import global_aval_to_result_handler
from jax.core import ShapedArray
from jax.sharding import SingleDeviceSharding
from jaxlib._jax import Device
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from model_server.kernels.cpu import native
from model_server.pathways.protocol import (
    CompiledMemoryStatsProto,
    HloModuleProto,
    XlaCompileOptionsProto,
)
from model_server.pathways.scheduling.custom_call import is_call
from model_server.pathways.scheduling.options import add_options
from model_server.pathways.worker.arrays import Arrays
from model_server.pathways.worker.calls import CallProgram, Calls
from model_server.pathways.worker.devices import IslandDevices
from model_server.pathways.worker.dtypes import ifrt_kind, mlir_dtype, numpy_dtype
from model_server.pathways.worker.shardings import Shardings
from model_server.pathways.worker.statuses import Refused, WrongRequest
from model_server.pathways.worker.values import ELSEWHERE, Later, RequestTask, Value


class _LastProgram(NamedTuple):
    done: Any  # a ShardedToken
    results: frozenset[int]  # identities

    def precedes(self, arguments: Iterable[Any]) -> bool:
        """Return True if these arguments depend on it."""
        return not self.results.isdisjoint(map(id, arguments))

    def wait(self) -> None:
        with contextlib.suppress(Exception):  # its results carry the error
            self.done.block_until_ready()


class Turns:
    """The last program of each CPU device, which computes every program whose arguments are there.

    Accelerators compute programs one after another, in the order of their launches. Two programs of
    different lanes or clients that a CPU computes in parallel would both be done as late as the
    second of them in turn: the islands of a pipeline would all compute at once, and then all wait.
    Used by one thread.
    """

    def __init__(self) -> None:
        self._last: dict[Device, _LastProgram] = {}

    def wait(self, devices: Iterable[Device], arguments: Iterable[Any]) -> None:
        """Return when a program with these arguments can be launched on these devices.

        One that takes results of the last program is launched at once: it waits for them anyway.
        """
        for last in {id(last): last for last in map(self._last.get, devices) if last}.values():
            if not last.precedes(arguments):
                last.wait()

    def launched(self, devices: Iterable[Device], done: Any, results: Sequence[Any]) -> None:
        """Remember a program. done: its ShardedToken."""
        self._last.update(dict.fromkeys(devices, _LastProgram(done, frozenset(map(id, results)))))


_MEMORY_STATS = (
    "generated_code_size_in_bytes",
    "argument_size_in_bytes",
    "output_size_in_bytes",
    "alias_size_in_bytes",
    "temp_size_in_bytes",
    "peak_memory_in_bytes",
    "host_generated_code_size_in_bytes",
    "host_argument_size_in_bytes",
    "host_output_size_in_bytes",
    "host_alias_size_in_bytes",
    "host_temp_size_in_bytes",
)


@dataclass(frozen=True, eq=False)
class Program:
    """A compiled program; `run` returns before its results are there."""

    executable: Any
    devices: tuple[Device, ...]  # in the order of its device assignment
    avals: tuple[ShapedArray, ...]  # of its results, over all devices
    donated: frozenset[int]  # arguments whose memory it reuses

    @cached_property
    def here(self) -> bool:
        """Tell whether this process computes a part of it; else another host of the island does."""
        return any(device.process_index == jax.process_index() for device in self.devices)

    @cached_property
    def shardings(self) -> tuple[jax.sharding.Sharding, ...]:
        """Shardings of its results."""
        kinds = self.executable.get_output_memory_kinds()[0]
        if len(self.devices) == 1:
            return tuple(SingleDeviceSharding(self.devices[0], memory_kind=k) for k in kinds)
        of = self.executable.get_output_shardings()
        return tuple(
            _jax.GSPMDSharding(self.devices, sharding, memory_kind=kind)
            for sharding, kind in zip(of, kinds, strict=True)
        )

    @cached_property
    def _handlers(self) -> list[Any]:
        return [
            global_aval_to_result_handler(aval, sharding, True)
            for aval, sharding in zip(self.avals, self.shardings, strict=True)
        ]

    def run(
        self, arguments: Sequence[jax.Array], launch_id: int = 0, turns: Turns | None = None
    ) -> list[jax.Array]:
        """Launch it. turns: of devices that do not keep the order of launches."""
        if turns is None:
            made = self.executable.execute_sharded(arguments, launch_id=launch_id or None)
            return made.consume_with_handlers(self._handlers)
        turns.wait(self.devices, arguments)
        made = self.executable.execute_sharded(
            arguments, with_tokens=True, launch_id=launch_id or None
        )
        done = made.consume_token()
        results = made.consume_with_handlers(self._handlers)
        turns.launched(self.devices, done, results)
        return results

    def outputs(self, shardings: Shardings) -> list[tuple[int, tuple[int, ...], Any]]:
        """Return the element type, shape and ShardingProto of each result."""
        return [
            (ifrt_kind(aval.dtype), aval.shape, shardings.written(sharding, len(aval.shape)))
            for aval, sharding in zip(self.avals, self.shardings, strict=True)
        ]

    def close(self) -> None:
        """Nothing is held outside this process."""

    @cached_property
    def module(self) -> Any:
        """Its first HloModuleProto, as compiled."""
        (first, *_) = self.executable.hlo_modules()
        return HloModuleProto.FromString(first.as_serialized_hlo_module_proto())

    @property
    def memory_stats(self) -> Any:
        """Return its CompiledMemoryStatsProto."""
        stats = self.executable.get_compiled_memory_stats()
        return CompiledMemoryStatsProto(**{name: getattr(stats, name, 0) for name in _MEMORY_STATS})


@dataclass(frozen=True, slots=True)
class Source:
    """A program to compile: its portable StableHLO, options and devices."""

    artifact: bytes
    options: bytes  # CompileOptionsProto, with this process's numbers of devices
    devices: tuple[Device, ...]


def source(asked: Any, devices: IslandDevices) -> Source:
    """Read a CompileRequest. Raises Refused and WrongRequest."""
    if asked.host_callbacks:
        raise Refused("programs may not call back into their client; fetch their results instead")
    kind = asked.program.type_name.rpartition("::")[2]
    if kind not in ("XlaProgram", "HloProgram"):
        raise Refused(f"programs of kind {kind or 'none'} are not offered here; StableHLO is")
    options = XlaCompileOptionsProto.FromString(asked.compile_options.data).compile_options
    build = options.executable_build_options
    rows = [row.replica_device_ids for row in build.device_assignment.computation_devices]
    numbers = [row[replica] for replica in range(len(rows[0]) if rows else 0) for row in rows]
    over = devices.devices(numbers) or devices.devices([devices.first_id])
    for row in rows:
        row[:] = [devices.device(number).id for number in row]
    if build.device_ordinal >= 0 and not rows:
        build.device_ordinal = over[0].local_hardware_id
    return Source(asked.program.data, options.SerializeToString(), over)


def compiled(of: Source, client: Any) -> Program:
    """Compile. Raises WrongRequest if the bytes are no StableHLO, and jax's errors."""
    native.load_lapack()
    context = make_ir_context()  # with the dialects of jax's programs
    try:
        module = stablehlo.deserialize_portable_artifact(context, of.artifact)
    except Exception as exc:
        raise WrongRequest(f"the program cannot be read as StableHLO: {exc}") from exc
    results, donated = _signature(module)
    options = _jax.CompileOptions.ParseFromString(of.options)
    executable = compile_or_get_cached(
        client, module, np.asarray(of.devices), options, [], _jax.DeviceList(of.devices)
    )
    return Program(executable, of.devices, results, donated)


def _signature(module: Any) -> tuple[tuple[ShapedArray, ...], frozenset[int]]:
    """Return the results of a module's main function, and the arguments that may be reused."""
    main: Any = ir.SymbolTable(module.operation)["main"]
    results = tuple(map(_aval, main.type.results))
    attributes = main.arg_attrs if "arg_attrs" in main.attributes else ()
    donated = frozenset(
        place
        for place, each in enumerate(attributes)
        if any(name in each for name in ("tf.aliasing_output", "jax.buffer_donor"))
    )
    return results, donated


def _aval(of: Any) -> ShapedArray:
    tensor = ir.RankedTensorType(of)
    dtype = mlir_dtype(str(tensor.element_type))
    if dtype is None:
        raise Refused(f"results of type {of} cannot be held here; return arrays of numbers")
    return ShapedArray(tuple(tensor.shape), np.dtype(dtype))


class ProgramRequests:
    """Handlers as in `ArrayRequests`."""

    def __init__(
        self,
        devices: IslandDevices,
        shardings: Shardings,
        arrays: Arrays,
        calls: Calls,
        options: Mapping[str, str],
    ) -> None:
        """options: of the compiler, by name, for all programs that do not set them."""
        self._devices = devices
        self._shardings = shardings
        self._arrays = arrays
        self._calls = calls
        self._options = options
        self._turns = Turns() if devices.client.platform == "cpu" else None

    def compile(self, task: RequestTask) -> Later:
        asked = task.request
        if is_call(asked):
            return lambda: self._compile_call(task)
        if self._options:
            add_options(asked, self._options)
        text = source(asked, self._devices)

        def later() -> None:
            program = compiled(text, self._devices.client)
            self._compiled(task, program, program.module.name)
            task.response.fingerprint_value = program.executable.fingerprint or b""

        return later

    def _compile_call(self, task: RequestTask) -> None:
        program = self._calls.program(task.session, task.request)
        if task.session.ended.is_set():
            program.close()
        self._compiled(task, program, program.name)

    def _compiled(self, task: RequestTask, program: Program | CallProgram, name: str) -> None:
        task.session.programs[task.made] = program
        response, numbers = task.response, self._devices.numbers(program.devices)
        response.loaded_executable_handle = task.made
        response.name = name
        response.num_devices = len(numbers)
        response.device_ids.extend(numbers)
        response.addressable_device_ids.extend(numbers)

    def loaded_executable_metadata(self, task: RequestTask) -> None:
        program, response = _program(task), task.response
        if isinstance(program, CallProgram):
            response.donated_input_indices.SetInParent()
            return
        executable, module = program.executable, program.module
        for shardings, into in (
            (executable.get_parameter_shardings(), response.parameter_shardings),
            (executable.get_output_shardings(), response.output_shardings),
        ):
            for each in shardings or ():
                into.shardings.add().ParseFromString(each.SerializeToString())
        shape = module.host_program_shape
        results = shape.result.tuple_shapes or [shape.result]
        response.parameter_layouts_list.layouts.extend(each.layout for each in shape.parameters)
        response.output_layouts_list.layouts.extend(each.layout for each in results)
        for kinds in executable.get_output_memory_kinds():
            response.output_memory_kinds.memory_kind_lists.add(memory_kinds=kinds)
        response.donated_input_indices.donated_input_indices.extend(sorted(program.donated))
        response.compiled_memory_stats.CopyFrom(program.memory_stats)
        response.size_of_generated_code_in_bytes = executable.size_of_generated_code_in_bytes()

    def loaded_executable_execute(self, task: RequestTask) -> None:
        asked, of, program = task.request, task.session, _program(task)
        if asked.loaded_executable_handle in of.deleted:
            raise WrongRequest("the program was deleted; compile it again")
        options = asked.execute_options
        handles = asked.result_array_handle
        status = (asked.result_status_handle or task.made) if options.fill_status else 0
        if not handles:
            handles = range(task.made + 1, task.made + 1 + len(program.avals))
            for handle, (kind, shape, sharding) in zip(
                handles, program.outputs(self._shardings), strict=True
            ):
                one = task.response.outputs.add(array_handle=handle, sharding=sharding)
                one.dtype.kind = kind
                one.shape.dims.extend(shape)
        task.response.status_handle = status

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
            return program.run(arguments, options.launch_id, self._turns)

        results = of.store(handles, make)
        if status:
            of.futures[status] = results

    def loaded_executable_fetch_execute_result(self, task: RequestTask) -> Later | None:
        """Answer without times: the devices here do not tell theirs."""
        return task.session.waited(task.request.result_status_handle)

    def loaded_executable_cost_analysis(self, task: RequestTask) -> None:
        task.response.attributes.SetInParent()
        for name, value in _program(task).executable.cost_analysis().items():
            task.response.attributes.attributes[name].float_value = value

    def loaded_executable_human_readable_program_text(self, task: RequestTask) -> None:
        task.response.human_readable_program_text = _program(task).executable.get_hlo_text()

    def loaded_executable_delete(self, task: RequestTask) -> None:
        _program(task)
        task.session.deleted.add(task.request.loaded_executable_handle)

    def loaded_executable_is_deleted(self, task: RequestTask) -> None:
        task.response.is_deleted = task.request.loaded_executable_handle in task.session.deleted

    def loaded_executable_destruct(self, task: RequestTask) -> None:
        handle = task.request.loaded_executable_handle
        if (program := task.session.programs.pop(handle, None)) is not None:
            program.close()
        task.session.deleted.discard(handle)

    def get_default_device_assignment(self, task: RequestTask) -> None:
        replicas, partitions = task.request.num_replicas, task.request.num_partitions
        if replicas * partitions > len(self._devices):
            raise WrongRequest(
                f"{replicas} replicas of {partitions} devices are more than the "
                f"{len(self._devices)} of this island"
            )
        numbers = self._devices.numbers(self._devices.every[: replicas * partitions])
        assignment = task.response.device_assignment
        assignment.replica_count = replicas
        assignment.computation_count = partitions
        for place in range(partitions):
            assignment.computation_devices.add(replica_device_ids=numbers[place::partitions])

    def get_default_layout(self, task: RequestTask) -> None:
        device = self._devices.device(task.request.device_id)
        dtype = numpy_dtype(task.request.dtype.kind)
        layout = device.client.get_default_layout(dtype, tuple(task.request.dims), device)
        (task.response.serialized_pjrt_layout,) = layout.__getstate__()


def _program(task: RequestTask) -> Any:
    """Return the Program or CallProgram of a request. Raises UnknownHandle."""
    return task.session.program(task.request.loaded_executable_handle)
