"""The TPU matmul kernel on a sharded weight.

XLA cannot partition a kernel, so each device multiplies by its own shard: outputs stay where they
are computed, and partial sums over sharded inputs are reduced. No weight moves.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax.sharding import PartitionSpec

from model_server.kernels.small_numbers import Packed, fits
from model_server.models.weights.sharding import WeightPlacement


def can_multiply(packed: Packed, place: WeightPlacement) -> bool:
    """True if the kernel supports every device's shard. packed: one matrix [out, in]."""
    shards = mesh_of(packed.values).shape
    outputs, inputs = (shards.get(axis, 1) for axis in (place.outputs, place.inputs))
    if packed.scales is not None and packed.scales.shape[1] > 1 and packed.scales.shape[1] % inputs:
        return False  # a shard would split a block

    def held(array: jax.Array) -> Any:
        rows, columns = array.shape
        part = columns if columns == 1 else columns // inputs
        return jax.ShapeDtypeStruct((1, rows // outputs, part), array.dtype)

    return fits(jax.tree.map(held, packed))


def multiply(x: jax.Array, packed: Packed, place: WeightPlacement) -> jax.Array:
    """[T, in] times the transposed matrix: f32[T, out]. Check `can_multiply` first."""
    from model_server.kernels.tpu.grouped_matmul import matmul  # Pallas takes 0.3 s to import

    mesh = mesh_of(packed.values)
    if mesh.empty:
        return matmul(x, packed, interpret=place.interpret)
    rows = None if place.rows is None or len(x) % mesh.shape[place.rows] else place.rows

    def spec(array: jax.Array) -> PartitionSpec:
        return PartitionSpec(place.outputs, None if array.shape[1] == 1 else place.inputs)

    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(PartitionSpec(rows, place.inputs), jax.tree.map(spec, packed)),
        out_specs=PartitionSpec(rows, place.outputs),
        check_vma=False,
    )
    def each(x: jax.Array, held: Packed) -> jax.Array:
        made = matmul(x, held, interpret=place.interpret)
        return made if place.inputs is None else jax.lax.psum(made, place.inputs)

    return each(x, packed)


def mesh_of(array: jax.Array) -> Any:
    """Mesh of a traced array; empty for a single device."""
    return jax.typeof(array).sharding.mesh
