"""Compiles a closed set of programs, two at a time, and returns them in order."""

from __future__ import annotations

import contextvars
import logging
import pickle
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp
from jax.experimental import serialize_executable
from jax.sharding import SingleDeviceSharding

from model_server.kernels.cpu import native

logger = logging.getLogger(__name__)
_LAPACK = b"lapack"  # in the names of calls, which XLA writes out


def to_bytes(program: Any) -> bytes:
    """Serialise a program. Raises whatever the backend raises if it cannot."""
    devices = [device.id for device in _devices(program)]
    return pickle.dumps((devices, serialize_executable.serialize(program)))


def from_bytes(body: bytes) -> Any:
    """Load the program onto the devices with the same ids. Raises anything on failure."""
    if _LAPACK in body:
        native.load_lapack()  # which imports scipy: a fifth of a second
    ids, serialized = pickle.loads(body)
    by_id = {device.id: device for device in jax.devices()}
    devices = [by_id[each] for each in ids]
    return serialize_executable.deserialize_and_load(*serialized, execution_devices=devices)


def _devices(program: Any) -> list[Any]:
    """Devices the program runs on, in its order: a mesh may use only some of them."""
    sharding = jax.tree.leaves(program.input_shardings)[0]
    mesh = getattr(sharding, "mesh", None)
    return list(sharding.device_set) if mesh is None else list(mesh.devices.flat)


# Layers are alike, so their code can be shared: a prompt step of 96 layers then has 23 MB of code
# in place of 550. By default libtpu shares code only when memory is nearly full.
_TPU = ("xla_tpu_enable_deduplicated_calls",)


def options_for(sharding: jax.sharding.Sharding) -> dict[str, bool]:
    """Return options for programs on these devices, local or remote.

    On a TPU, test-compiles a program of one addition.
    """
    devices = sorted(sharding.device_set, key=lambda device: device.id)
    if devices[0].platform != "tpu":
        return {}
    own = [each for each in devices if each.process_index == jax.process_index()]
    return dict.fromkeys(understood(_TPU, (own or devices)[0]), True)


@cache
def understood(names: tuple[str, ...], device: Any) -> tuple[str, ...]:
    """Return the options, or none if this device's compiler does not know one of them."""
    shape = jax.ShapeDtypeStruct((8, 128), jnp.float32, sharding=SingleDeviceSharding(device))
    try:
        plus_one = jax.jit(lambda x: x + 1, compiler_options=dict.fromkeys(names, True))
        plus_one.lower(shape).compile()
    except jax.errors.JaxRuntimeError as exc:
        if "No such compile option" not in str(exc):
            raise
        logger.warning("this libtpu does not know %s; compiling without", " and ".join(names))
        return ()
    return names


Shape = TypeVar("Shape")

_COMPILERS = 2  # programs compiled at once: each takes hundreds of MB meanwhile


class Programs(Protocol):
    """Source of compiled programs."""

    def compiled(self, name: str, lower: Callable[[], jax.stages.Lowered]) -> Any:
        """Return the program of this name; `lower` traces it if it must be compiled."""
        ...

    def pass_on(self, name: str, body: bytes) -> None:
        """Send the bytes of an existing program to hosts that wait for it."""
        ...


class _CompiledHere:
    """Compiles in this process, using jax's persistent cache."""

    def compiled(self, name: str, lower: Callable[[], jax.stages.Lowered]) -> Any:
        return lower().compile()

    def pass_on(self, name: str, body: bytes) -> None:
        """Does nothing: no other host waits."""


COMPILED_HERE: Programs = _CompiledHere()


class CompiledAhead:
    """Compiles programs while their weights are read; `compiled` waits for each. To be closed."""

    def __init__(
        self,
        lowers: Mapping[str, Callable[[], jax.stages.Lowered]],
        programs: Programs = COMPILED_HERE,
    ) -> None:
        self._programs = programs
        self._pool = ThreadPoolExecutor(_COMPILERS, thread_name_prefix="compile")
        self._made = {
            # The caller's context marks these compiles as expected (see CompileWatch).
            name: self._pool.submit(contextvars.copy_context().run, programs.compiled, name, lower)
            for name, lower in lowers.items()
        }

    def compiled(self, name: str, lower: Callable[[], jax.stages.Lowered]) -> Any:
        made = self._made.pop(name, None)  # once: a draft model has programs of the same names
        return self._programs.compiled(name, lower) if made is None else made.result()

    def pass_on(self, name: str, body: bytes) -> None:
        self._programs.pass_on(name, body)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def compiled_in_turn(
    shapes: Sequence[Shape], compile_one: Callable[[Shape], Any]
) -> Generator[tuple[Shape, Any], None, None]:
    """Yield each shape (a bucket, or a number of rows) and its program, in their order.

    Compiles two at a time, so that tracing, which is Python, overlaps with compiling, which is not.
    Close the generator to skip the rest.
    """

    def timed(shape: Shape) -> Any:
        started = time.monotonic()
        program = compile_one(shape)
        logger.info("the program for %s was ready after %.1f s", shape, time.monotonic() - started)
        return program

    with ThreadPoolExecutor(_COMPILERS, thread_name_prefix="compile") as pool:
        # The caller's context marks these compiles as expected (see CompileWatch).
        tasks = [pool.submit(contextvars.copy_context().run, timed, shape) for shape in shapes]
        try:
            for shape, task in zip(shapes, tasks, strict=True):
                yield shape, task.result()
        finally:
            pool.shutdown(cancel_futures=True)
