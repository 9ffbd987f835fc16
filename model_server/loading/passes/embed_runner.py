"""Computes a vector per input, an embedding or scores: pad to a bucket, then one compiled call.

A model is a function from tokens to vectors. Every bucket is compiled before the first
request; a compiled call cannot compile again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from model_server.loading.passes.pass_programs import PassBucket, PassPrograms, split
from model_server.models.weights.quantized import as_bytes, byte_shape
from model_server.models.weights.sharding import divided_rows, own_device
from model_server.models.weights.weight import Blueprint, leaf_shapes
from sax.types import Progress

Encode = Callable[[Any, jax.Array, jax.Array], jax.Array]  # module, i32[B, T], i32[B] -> f32[B, D]


class EmbedPrograms(PassPrograms):
    """The buckets of one module's vectors."""

    def __init__(
        self,
        module: Blueprint,
        encode: Encode,
        *,
        context: int,
        batch: int,
        leaves: Sequence[jax.ShapeDtypeStruct] | None = None,
    ) -> None:
        """leaves: shapes and shardings of the weights; None: all on this process's own device."""
        super().__init__("embedding", context, batch, self._lowered)
        given = leaf_shapes(module, own_device()) if leaves is None else leaves
        self._leaves = tuple(map(byte_shape, given))
        self._module = module
        self._encode = encode

    def _lowered(self, bucket: PassBucket) -> jax.stages.Lowered:
        def run(leaves: list[jax.Array], tokens: jax.Array, lengths: jax.Array) -> jax.Array:
            return self._encode(self._module.assemble(leaves), tokens, lengths)

        where = divided_rows(self._leaves[0].sharding, bucket.rows)
        tokens = jax.ShapeDtypeStruct(bucket, jnp.int32, sharding=where)
        lengths = jax.ShapeDtypeStruct((bucket.rows,), jnp.int32, sharding=where)
        return jax.jit(run).lower(self._leaves, tokens, lengths)


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
            vectors += self._embed(part, PassBucket(rows, length))
        return vectors

    def warm(self, report: Callable[[Progress], None]) -> None:
        """Run every bucket once, so that no request pays for a first run."""
        buckets = self._programs.buckets
        for done, bucket in enumerate(buckets):
            report(Progress("running bucket", done, len(buckets)))
            self._embed((), bucket)

    def close(self) -> None:
        """Release weights and programs. Idempotent."""
        self._leaves = ()
        self._programs.compiled.clear()
        self.closed = True

    def _embed(self, inputs: Sequence[Sequence[int]], bucket: PassBucket) -> list[list[float]]:
        tokens = np.zeros(bucket, np.int32)
        # Empty rows count one token, so that pooling does not divide by zero.
        lengths = np.ones(bucket.rows, np.int32)
        for row, ids in enumerate(inputs):
            tokens[row, : len(ids)] = ids
            lengths[row] = len(ids)
        vectors = self._programs.compiled[bucket](self._leaves, tokens, lengths)
        return np.asarray(vectors)[: len(inputs)].tolist()
