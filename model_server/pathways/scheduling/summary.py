"""Summaries of requests: one table with the handles that each kind reads, makes and destroys.

The dispatcher reads handles and devices only; workers read the rest. A row names fields of the
request, so a kind of a later protocol is one more row. Raises InvalidRequest for a request without
a kind, or of a kind that is not in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from model_server.pathways import protocol as messages
from model_server.pathways.scheduling.custom_call import call_of, is_call
from sax.errors import InvalidRequest

_SHARDINGS: dict[str, Any] = {
    "xla::ifrt::ConcreteEvenSharding": messages.ConcreteEvenShardingProto,
    "xla::ifrt::ConcreteSharding": messages.ConcreteShardingProto,
    "xla::ifrt::HloSharding": messages.HloShardingProto,
    "xla::ifrt::OpaqueSharding": messages.OpaqueShardingProto,
}
_SINGLE = "xla::ifrt::SingleDeviceSharding"
_OPTIONS = "xla::ifrt::XlaCompileOptions"


def devices_of(sharding: Any) -> tuple[int, ...]:
    """Return the devices of a ShardingProto, in its order."""
    serialized = sharding.serialized_sharding
    return _of_sharding(serialized.type_name.removesuffix("Proto"), serialized.data)


@lru_cache(maxsize=4096)
def _of_sharding(name: str, data: bytes) -> tuple[int, ...]:
    try:
        if name == _SINGLE:
            return (messages.SingleDeviceShardingProto.FromString(data).device_id,)
        return tuple(_SHARDINGS[name].FromString(data).devices.device_ids)
    except KeyError:
        known = ", ".join((*_SHARDINGS, _SINGLE))
        raise InvalidRequest(f"a sharding of the type {name!r}: use one of {known}") from None
    except DecodeError as exc:
        raise InvalidRequest(f"a malformed {name}: {exc}") from exc


def of_program(request: Any) -> tuple[int, ...]:
    """Return the devices that a CompileRequest assigns to its program, each once."""
    if is_call(request):
        return tuple(dict.fromkeys(call_of(request).devices.device_ids))
    options = request.compile_options
    if options.type_name.removesuffix("Proto") != _OPTIONS:
        raise InvalidRequest(
            f"compile options of the type {options.type_name!r}: this proxy server compiles "
            f"StableHLO programs with {_OPTIONS}"
        )
    try:
        made = messages.XlaCompileOptionsProto.FromString(options.data).compile_options
    except DecodeError as exc:
        raise InvalidRequest(f"malformed compile options: {exc}") from exc
    build = made.executable_build_options
    assigned = dict.fromkeys(
        device
        for computation in build.device_assignment.computation_devices
        for device in computation.replica_device_ids
    )
    return tuple(assigned) or ((build.device_ordinal,) if build.device_ordinal >= 0 else ())


Devices = Callable[[Any], Iterable[int]]
_SUFFIX = "_request"


class How(Enum):
    """The place where a request is answered."""

    HERE = "here"  # by the dispatcher itself
    ANY = "any"  # by any island
    LIKE = "like"  # by the island of its device, or by another in its place
    ISLAND = "island"  # by the one island of its handles and devices
    SPLIT = "split"  # in parts by the islands of its handles
    COPY = "copy"  # reads on one island, makes on another


@dataclass(frozen=True, slots=True)
class KindRow:
    """Fields of one kind of request that hold handles, by what becomes of them."""

    how: How
    reads: tuple[str, ...] = ()
    makes: tuple[str, ...] = ()  # handles that the client chose
    destroys: tuple[str, ...] = ()  # also read
    buffers: Callable[[Any], Iterable[int]] | None = None  # host buffers that it consumes
    fetches: str = ""  # host buffer that its answer fills
    devices: Devices | None = None
    answers: tuple[str, ...] = ()  # fields of the answer with handles that the worker chose
    programs: bool = False  # it makes programs, which are compiled again when an island returns
    forgiving: bool = False  # handles of lost arrays are no error
    work: bool = False  # occupies the devices
    looks: bool = False  # only reads: may overtake requests that touch other handles


class Summary(NamedTuple):
    """The part of a request that the dispatcher reads; handles and devices in its order."""

    kind: str  # "compile_request"
    row: KindRow
    op_id: int
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    destroys: tuple[int, ...]
    buffers: tuple[int, ...]
    fetches: int  # 0: none
    devices: tuple[int, ...]
    counted: bool  # the answer holds handles that the worker chose

    @property
    def response(self) -> str:
        """Name of the answer's field."""
        return f"{self.kind.removesuffix(_SUFFIX)}_response"


def _specs(field: str) -> Devices:
    def found(body: Any) -> Iterable[int]:
        for spec in getattr(body, field):
            yield from devices_of(spec.sharding)

    return found


def _shard_devices(body: Any) -> Iterable[int]:
    for spec in body.specs:
        yield from devices_of(spec.array_spec.sharding)


def _shard_buffers(body: Any) -> Iterable[int]:
    for spec in body.specs:
        yield from (buffer.host_buffer_handle for buffer in spec.host_buffers)


_ARRAYS, _ARRAY, _RESULTS = ("array_handles",), ("array_handle",), ("result_handles",)
_PROGRAM = ("loaded_executable_handle",)
_ISLAND, _SPLIT = How.ISLAND, How.SPLIT

TABLE: dict[str, KindRow] = {
    "init_request": KindRow(How.HERE),
    "check_future_request": KindRow(_SPLIT, destroys=("future_handle",)),
    "check_value_ready_request": KindRow(_SPLIT, reads=("value_handles",), looks=True),
    "make_array_from_host_buffer_request": KindRow(
        _ISLAND,
        makes=_ARRAY,
        buffers=lambda body: (body.host_buffer_handle,),
        devices=lambda body: devices_of(body.sharding),
        answers=_ARRAY,
    ),
    "make_arrays_from_host_buffer_shards_request": KindRow(
        _ISLAND, makes=_ARRAYS, buffers=_shard_buffers, devices=_shard_devices, answers=_ARRAYS
    ),
    "make_error_arrays_request": KindRow(
        _ISLAND, makes=_ARRAYS, devices=_specs("array_specs"), answers=_ARRAYS
    ),
    "assemble_array_from_single_device_arrays_request": KindRow(
        _ISLAND,
        reads=("single_device_array_handles",),
        makes=("result_handle",),
        devices=lambda body: devices_of(body.sharding),
        answers=_ARRAY,
    ),
    "remap_arrays_request": KindRow(_ISLAND, reads=_ARRAYS, makes=_RESULTS, answers=_ARRAYS),
    "bitcast_arrays_request": KindRow(_ISLAND, reads=_ARRAYS, makes=_RESULTS, answers=_ARRAYS),
    "reshard_arrays_request": KindRow(
        _ISLAND,
        reads=_ARRAYS,
        makes=_RESULTS,
        devices=_specs("array_specs"),
        answers=_ARRAYS,
        work=True,
    ),
    "copy_to_host_buffer_request": KindRow(
        _ISLAND, reads=_ARRAY, fetches="host_buffer_handle", looks=True
    ),
    "disassemble_into_single_device_arrays_request": KindRow(
        _ISLAND, reads=_ARRAY, makes=_RESULTS, answers=_ARRAYS
    ),
    "delete_array_request": KindRow(
        _SPLIT, reads=_ARRAY, answers=("deletion_future_handle",), forgiving=True
    ),
    "copy_arrays_request": KindRow(
        How.COPY,
        reads=_ARRAYS,
        makes=_RESULTS,
        devices=lambda body: body.device_ids,
        answers=_ARRAYS,
        work=True,
    ),
    "fully_replicated_shard_request": KindRow(
        _ISLAND, reads=_ARRAY, makes=("result_handle",), answers=_ARRAY
    ),
    "is_array_deleted_request": KindRow(_ISLAND, reads=_ARRAY),
    "destruct_array_request": KindRow(_SPLIT, destroys=_ARRAY, forgiving=True),
    "compile_request": KindRow(
        _ISLAND,
        devices=of_program,
        answers=("loaded_executable_handle", "loaded_host_callback_handles", "ready_future_handle"),
        programs=True,
    ),
    "loaded_executable_metadata_request": KindRow(_ISLAND, reads=_PROGRAM),
    "loaded_executable_execute_request": KindRow(
        _ISLAND,
        reads=(*_PROGRAM, "args_handles"),
        makes=("result_array_handle", "result_status_handle"),
        devices=lambda body: body.device_ids,
        answers=("status_handle", "outputs"),
        work=True,
    ),
    "loaded_executable_fetch_execute_result_request": KindRow(
        _ISLAND, destroys=("result_status_handle",)
    ),
    "loaded_executable_cost_analysis_request": KindRow(_ISLAND, reads=_PROGRAM),
    "loaded_executable_human_readable_program_text_request": KindRow(_ISLAND, reads=_PROGRAM),
    "loaded_executable_delete_request": KindRow(
        _ISLAND, reads=_PROGRAM, answers=("future_handle",)
    ),
    "loaded_executable_is_deleted_request": KindRow(_ISLAND, reads=_PROGRAM),
    "loaded_executable_destruct_request": KindRow(_SPLIT, destroys=_PROGRAM, forgiving=True),
    "loaded_executable_mpmd_metadata_request": KindRow(
        _ISLAND, reads=("mpmd_loaded_executable_handle",)
    ),
    "loaded_executable_mpmd_cost_analysis_request": KindRow(_ISLAND, reads=_PROGRAM),
    "loaded_host_callback_poll_request": KindRow(
        _ISLAND,
        reads=("loaded_host_callback_handle",),
        fetches="operand_host_buffer_handle",
        answers=("host_callback_execution_handle",),
    ),
    "loaded_host_callback_return_request": KindRow(
        _ISLAND,
        destroys=("host_callback_execution_handle",),
        buffers=lambda body: filter(None, (body.result_host_buffer_handle,)),
    ),
    "get_default_device_assignment_request": KindRow(How.ANY),
    "get_default_layout_request": KindRow(How.LIKE, devices=lambda body: (body.device_id,)),
}


def summarise(request: Any) -> Summary:
    """Summarise an IfrtRequest. Raises InvalidRequest."""
    kind = request.WhichOneof("request")
    row = TABLE.get(kind)
    if row is None:
        raise InvalidRequest(
            f"a request of the kind {kind}: this proxy server does not know it; use a jaxlib "
            "between 0.10 and 0.12"
        )
    body = getattr(request, kind)
    destroys = handles(body, row.destroys)
    return Summary(
        kind,
        row,
        request.request_metadata.op_id,
        handles(body, row.reads) + destroys,
        handles(body, row.makes),
        destroys,
        tuple(row.buffers(body)) if row.buffers else (),
        getattr(body, row.fetches) if row.fetches else 0,
        tuple(row.devices(body)) if row.devices else (),
        bool(row.answers) and not handles(body, row.makes[:1]),
    )


def handles(body: Any, fields: Iterable[str]) -> tuple[int, ...]:
    """Return the handles in fields of a request; a handle of 0 is none."""
    found: tuple[int, ...] = ()
    for field in fields:
        value = getattr(body, field)
        found += ((value,) if value else ()) if isinstance(value, int) else tuple(value)
    return found


def answered_handles(body: Any, row: KindRow) -> tuple[int, ...]:
    """Return the handles that a worker gave out in the answer to a request of this row."""
    found = handles(body, (field for field in row.answers if field != "outputs"))
    if "outputs" in row.answers:
        found += tuple(output.array_handle for output in body.outputs)
    return found
