"""Requests as jaxlib's client writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from model_server.pathways import protocol as messages


def request(kind: str, op_id: int = 1, **fields: Any) -> Any:
    """An IfrtRequest of a kind ("check_future") with these fields in its body."""
    made = messages.IfrtRequest()
    made.request_metadata.op_id = op_id
    body = getattr(made, f"{kind}_request")
    body.SetInParent()
    for name, value in fields.items():
        if isinstance(value, (list, tuple, range)):
            getattr(body, name).extend(value)
        elif isinstance(value, (int, bytes, str)):
            setattr(body, name, value)
        else:
            getattr(body, name).CopyFrom(value)
    return made


def on_device(device: int) -> Any:
    """The sharding of an array on one device."""
    data = messages.SingleDeviceShardingProto(version_number=0, device_id=device)
    return _sharding("SingleDeviceSharding", data)


def over(devices: Sequence[int]) -> Any:
    """The sharding of an array over several devices."""
    data = messages.HloShardingProto(devices=messages.DeviceListProto(device_ids=devices))
    return _sharding("HloSharding", data)


def _sharding(name: str, data: Any) -> Any:
    made = messages.ShardingProto()
    made.serialized_sharding.type_name = f"xla::ifrt::{name}"
    made.serialized_sharding.data = data.SerializeToString()
    return made


def spec(sharding: Any) -> Any:
    return messages.ArraySpecProto(sharding=sharding)


def options(devices: Sequence[int]) -> Any:
    """Compile options that assign a program to devices."""
    made = messages.XlaCompileOptionsProto()
    build = made.compile_options.executable_build_options
    build.device_assignment.computation_devices.add(replica_device_ids=devices)
    return messages.Serialized(
        type_name="xla::ifrt::XlaCompileOptions", data=made.SerializeToString()
    )


def call(name: str, devices: Sequence[int], text: bytes = b"", results: Sequence[Any] = ()) -> Any:
    """The program of a call."""
    made = messages.CustomCallProgramProto(
        type="jax_colocated_python_v0.0.1", name=name, serialized_program_text=text
    )
    made.devices.device_ids.extend(devices)
    made.output_specs.extend(results)
    return messages.Serialized(
        type_name="xla::ifrt::CustomCallProgram", data=made.SerializeToString()
    )


def put(array: int, device: int, buffer: int, op_id: int = 1) -> Any:
    return request(
        "make_array_from_host_buffer",
        op_id,
        array_handle=array,
        host_buffer_handle=buffer,
        sharding=on_device(device),
    )


def execute(program: int, args: Sequence[int], results: Sequence[int], op_id: int = 1) -> Any:
    return request(
        "loaded_executable_execute",
        op_id,
        loaded_executable_handle=program,
        args_handles=args,
        result_array_handle=results,
    )
