"""Device ids of shardings and of compile options, read from their serialized forms.

Raises InvalidRequest for a form that this proxy server does not know.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from google.protobuf.message import DecodeError

from model_server.pathways.protocol import messages
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


def of_sharding(sharding: Any) -> tuple[int, ...]:
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
