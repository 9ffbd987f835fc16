"""Computes a vector per input, an embedding or scores: pad to a bucket, then one compiled call.

A model is a function from tokens to vectors. Every bucket is compiled before the first
request; a compiled call cannot compile again.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from model_server.engine.step_program import everywhere
from model_server.models.weights.quantized import as_bytes, byte_shape
from model_server.models.weights.sharding import own_device
from model_server.models.weights.weight import Blueprint, leaf_shapes
from sax.types import Progress

_COMPILERS = 2  # programs compiled at once
_SHORTEST = 32
_TOKENS = 4096  # tokens per call at most, unless a single input has more

Encode = Callable[[Any, jax.Array, jax.Array], jax.Array]  # module, i32[B, T], i32[B] -> f32[B, D]


def lengths_up_to(context: int) -> tuple[int, ...]:
    """Return the lengths to compile: powers of two times the shortest, then the whole context."""
    lengths, length = [], _SHORTEST
    while length < context:
        lengths.append(length)
        length *= 2
    return (*lengths, context)


def rows_up_to(batch: int, length: int) -> tuple[int, ...]:
    """Return the batch sizes to compile for one length: 1, 4, 16, ... as far as they fit."""
    most = max(1, min(batch, _TOKENS // length))
    rows, size = [], 1
    while size < most:
        rows.append(size)
        size *= 4
    return (*rows, most)


def split(count: int, sizes: Sequence[int]) -> list[int]:
    """Return compiled sizes that together hold `count` inputs, none more than half empty."""
    chosen: list[int] = []
    while count > 0:
        fitting = [size for size in sizes if size < 2 * count]
        chosen.append(max(fitting))
        count -= chosen[-1]
    return chosen


class EmbedPrograms:
    """All buckets, compiled before there are weights."""

    def __init__(
        self,
        module: Blueprint,
        encode: Encode,
        *,
        context: int,
        batch: int,
        report: Callable[[Progress], None],
        leaves: Sequence[jax.ShapeDtypeStruct] | None = None,
    ) -> None:
        """leaves: shapes and shardings of the weights; None: all on this process's own device."""
        given = leaf_shapes(module, own_device()) if leaves is None else leaves
        self._leaves = tuple(map(byte_shape, given))
        self.rows = {length: rows_up_to(batch, length) for length in lengths_up_to(context)}
        self._module = module
        self._encode = encode
        self.compiled: dict[tuple[int, int], jax.stages.Compiled] = {}
        self._compile(report)

    def _compile(self, report: Callable[[Progress], None]) -> None:
        """Compile two at a time, so that tracing (in Python) overlaps with compiling."""
        wanted = [(rows, length) for length, sizes in self.rows.items() for rows in sizes]
        report(Progress("compiling bucket", 0, len(wanted)))
        with ThreadPoolExecutor(_COMPILERS, thread_name_prefix="compile") as pool:
            # The caller's context marks these compiles as expected (see CompileWatch).
            tasks = [
                pool.submit(contextvars.copy_context().run, self._compile_one, *bucket)
                for bucket in wanted
            ]
            try:
                for done, (bucket, task) in enumerate(zip(wanted, tasks, strict=True), 1):
                    self.compiled[bucket] = task.result()
                    report(Progress("compiling bucket", done, len(wanted)))
            finally:
                pool.shutdown(cancel_futures=True)

    def _compile_one(self, rows: int, length: int) -> jax.stages.Compiled:
        def run(leaves: list[jax.Array], tokens: jax.Array, lengths: jax.Array) -> jax.Array:
            return self._encode(self._module.assemble(leaves), tokens, lengths)

        where = everywhere(self._leaves[0].sharding)
        tokens = jax.ShapeDtypeStruct((rows, length), jnp.int32, sharding=where)
        lengths = jax.ShapeDtypeStruct((rows,), jnp.int32, sharding=where)
        return jax.jit(run).lower(self._leaves, tokens, lengths).compile()

    @property
    def workspace(self) -> int:
        """Bytes of temporaries and results of the largest bucket; 0 if not reported."""
        stats = [program.memory_analysis() for program in self.compiled.values()]
        return max(
            (each.temp_size_in_bytes + each.output_size_in_bytes for each in stats if each),
            default=0,
        )


class EmbedModelRunner:
    """Programs and weights of an embedder. Not thread-safe: one thread calls it."""

    def __init__(self, programs: EmbedPrograms, leaves: Sequence[jax.Array], batch: int) -> None:
        self._programs = programs
        self._leaves = tuple(map(as_bytes, leaves))
        self.batch = batch
        self.closed = False

    def length(self, count: int) -> int:
        return next(length for length in self._programs.rows if length >= count)

    def embed(self, inputs: Sequence[Sequence[int]]) -> list[list[float]]:
        length = self.length(max(map(len, inputs)))
        vectors: list[list[float]] = []
        for rows in split(len(inputs), self._programs.rows[length]):
            part = inputs[len(vectors) : len(vectors) + rows]
            vectors += self._embed(part, rows, length)
        return vectors

    def close(self) -> None:
        """Release weights and programs. Idempotent."""
        self._leaves = ()
        self._programs.compiled.clear()
        self.closed = True

    def _embed(self, inputs: Sequence[Sequence[int]], rows: int, length: int) -> list[list[float]]:
        tokens = np.zeros((rows, length), np.int32)
        # Empty rows count one token, so that pooling does not divide by zero.
        lengths = np.ones(rows, np.int32)
        for row, ids in enumerate(inputs):
            tokens[row, : len(ids)] = ids
            lengths[row] = len(ids)
        vectors = self._programs.compiled[rows, length](self._leaves, tokens, lengths)
        return np.asarray(vectors)[: len(inputs)].tolist()
