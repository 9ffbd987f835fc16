"""The programs that compute a vector per input, an embedding or scores.

A model is a function from tokens to vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from model_server.loading.passes.loaded_passes import Ids, Vector
from model_server.loading.passes.pass_programs import PassBucket, PassPrograms
from model_server.models.weights.quantized import byte_shape
from model_server.models.weights.sharding import divided_rows, own_device
from model_server.models.weights.weight import Blueprint, leaf_shapes

Encode = Callable[[Any, jax.Array, jax.Array], jax.Array]  # module, i32[B, T], i32[B] -> f32[B, D]


class EmbedPrograms(PassPrograms[Ids, Vector]):
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

    @staticmethod
    def ids(given: Ids) -> Ids:
        return given

    def run(
        self, leaves: Sequence[jax.Array], inputs: Sequence[Ids], bucket: PassBucket
    ) -> list[Vector]:
        tokens = np.zeros(bucket, np.int32)
        # Empty rows count one token, so that pooling does not divide by zero.
        lengths = np.ones(bucket.rows, np.int32)
        for row, ids in enumerate(inputs):
            tokens[row, : len(ids)] = ids
            lengths[row] = len(ids)
        vectors = self.compiled[bucket](leaves, tokens, lengths)
        return np.asarray(vectors)[: len(inputs)].tolist()
