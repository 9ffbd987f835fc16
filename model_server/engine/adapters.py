"""One host's part of the adapters in memory: read from their files in any thread, written in order.

An adapter is read first, which takes as long as its files do, and then written into its place
between two steps, by a program that is compiled with the steps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from model_server.engine.compiling import Programs
from model_server.engine.step_program import StepProgram
from model_server.kernels.local_devices import full

ADAPTER = "write an adapter"  # the name of the program beside those of the buckets

# Blocking: the factors at this path, in the order of `StepProgram.adapter_shapes`. Raises
# CheckpointError.
ReadAdapter = Callable[[str], Sequence[jax.Array]]


class Adapters:
    """The adapters of one model on this host."""

    def __init__(self, program: StepProgram, read: ReadAdapter | None) -> None:
        """read: None: the model has no room for adapters."""
        assert (read is None) == (not program.factors), "room for adapters, and nothing to fill it"
        self._program = program
        self._read = read
        self._write: Any = None
        self._waiting: dict[str, Sequence[jax.Array]] = {}  # read, by key
        self._guard = threading.Lock()

    def compile(self, programs: Programs) -> None:
        if self._read is not None:
            self._write = programs.compiled(ADAPTER, self._program.lower_adapter)

    def read(self, key: str, path: str) -> None:
        """Read an adapter and keep it under the key until `written`. Raises CheckpointError."""
        assert self._read is not None, "the loader checks for room"
        made = self._read(path)
        with self._guard:
            self._waiting[key] = made

    def forget(self, key: str) -> None:
        with self._guard:
            self._waiting.pop(key, None)

    def written(self, leaves: Sequence[jax.Array], key: str, place: int) -> tuple[jax.Array, ...]:
        """Return the model's weights with the adapter in its place, from 1 on. Donates its old
        factors.
        """
        with self._guard:
            given = self._waiting.pop(key)
        return self._put(leaves, given, place)

    def warmed(self, leaves: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
        """Write zeros into the first place: the first run of a program links it."""
        if self._write is None:
            return tuple(leaves)
        shapes = self._program.adapter_shapes
        return self._put(leaves, [full(s.shape, 0, s.dtype, s.sharding) for s in shapes], 1)

    def _put(
        self, leaves: Sequence[jax.Array], given: Sequence[jax.Array], place: int
    ) -> tuple[jax.Array, ...]:
        held, factors = list(leaves), self._program.factors
        made = self._write(tuple(held[i] for i in factors), tuple(given), np.int32(place - 1))
        for index, array in zip(factors, made, strict=True):
            held[index] = array
        return tuple(held)
