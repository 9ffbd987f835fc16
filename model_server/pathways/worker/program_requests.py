"""Carries out the requests on programs. Methods have the names of the kinds of requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from model_server.pathways.scheduling.custom_call import is_call
from model_server.pathways.scheduling.options import add_options
from model_server.pathways.worker import programs
from model_server.pathways.worker.arrays import Arrays
from model_server.pathways.worker.calls import CallProgram, Calls
from model_server.pathways.worker.devices import IslandDevices
from model_server.pathways.worker.dtypes import numpy_dtype
from model_server.pathways.worker.programs import Program
from model_server.pathways.worker.shardings import Shardings
from model_server.pathways.worker.statuses import WrongRequest
from model_server.pathways.worker.turns import Turns
from model_server.pathways.worker.values import ELSEWHERE, Buffers, Later, Session, Value


class ProgramRequests:
    """Methods as in `ArrayRequests`."""

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

    def compile(self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers) -> Later:
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

    def loaded_executable_metadata(
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

    def loaded_executable_execute(
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
            return program.run(arguments, options.launch_id, self._turns)

        results = of.store(handles, make)
        if status:
            of.futures[status] = results

    def loaded_executable_fetch_execute_result(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> Later | None:
        """Devices here do not tell their times."""
        return of.waited(asked.result_status_handle)

    def loaded_executable_cost_analysis(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> None:
        costs = of.program(asked.loaded_executable_handle).executable.cost_analysis()
        told.attributes.SetInParent()
        for name, value in costs.items():
            told.attributes.attributes[name].float_value = value

    def loaded_executable_human_readable_program_text(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> None:
        program = of.program(asked.loaded_executable_handle)
        told.human_readable_program_text = program.executable.get_hlo_text()

    def loaded_executable_delete(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> None:
        of.program(asked.loaded_executable_handle)
        of.deleted.add(asked.loaded_executable_handle)

    def loaded_executable_is_deleted(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> None:
        told.is_deleted = asked.loaded_executable_handle in of.deleted

    def loaded_executable_destruct(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> None:
        close_program(of.programs.pop(asked.loaded_executable_handle, None))
        of.deleted.discard(asked.loaded_executable_handle)

    def get_default_device_assignment(
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

    def get_default_layout(
        self, of: Session, asked: Any, told: Any, made: int, buffers: Buffers
    ) -> None:
        device = self._devices.device(asked.device_id)
        dtype = numpy_dtype(asked.dtype.kind)
        layout = device.client.get_default_layout(dtype, tuple(asked.dims), device)
        (told.serialized_pjrt_layout,) = layout.__getstate__()


def _outputs(program: Program | CallProgram, shardings: Shardings) -> Any:
    return program.outputs() if isinstance(program, CallProgram) else program.outputs(shardings)


def close_program(program: Any) -> None:
    """Let go of what a program holds outside this process, if it is a call."""
    if isinstance(program, CallProgram):
        program.close()
