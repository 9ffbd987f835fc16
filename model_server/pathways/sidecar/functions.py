"""Functions of clients in the sidecar's process: pickled code, which may do anything it likes.

A process of its own, for three reasons. Functions name devices by their clients' numbers, and only
a backend that is made for it numbers CPU devices so. They share an interpreter with each other, and
would with the arrays of all clients. And one that crashes or runs for ever must not take the
island with it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.experimental.colocated_python import serialization
from jax.extend import backend
from jaxlib import _pathways  # pyright: ignore[reportAttributeAccessIssue]

from model_server.pathways.protocol.messages import DTypeProto
from model_server.pathways.sidecar.messages import HostArray, SidecarPlace
from model_server.pathways.worker.arrays import host_bytes
from model_server.pathways.worker.dtypes import ifrt_kind, numpy_dtype
from sax.errors import InvalidRequest
from sax.host import xla_threads

STRING = DTypeProto.Kind.Value("KIND_STRING")
_PLATFORM = "beside"


@dataclass(frozen=True, slots=True)
class ClientFunction:
    """A function with the arrays that it takes and makes."""

    call: Any
    takes: Any  # tree of (args, kwargs)
    arguments: Sequence[jax.ShapeDtypeStruct]
    makes: Any
    results: Sequence[jax.ShapeDtypeStruct]


class Functions:
    """Those of one sidecar. Thread-safe, once started."""

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
        """Call a function. Raises what it raises, InvalidRequest for what it should not return."""
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
