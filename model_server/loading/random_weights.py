"""Fills declared weights with random numbers that depend on the seed only, not on the sharding.

Each number follows from the seed, the name of the tensor it is part of and its position there, so a
process draws only what its own devices hold.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from model_server.kernels.local_devices import OWN, beside, full, starts, whole
from model_server.loading.weights import Report, fill, placed_in_tiles
from model_server.models.weights.drawing import Draw, drawn_rows, rows_of
from model_server.models.weights.sharding import Layout, own_device
from model_server.models.weights.weight import Declaration, Leaf

_SMALL = 2**16  # drawing fewer numbers than this takes less time than optimising the program
_UNOPTIMISED = {"xla_backend_optimization_level": 0}
# Standard deviation of random quantised values: small enough that few need clipping.
_SPREADS = {"int8": 32.0, "int4": 2.3, "float8_e4m3fn": 1.0, "float4_e2m1fn": 2.0}


def random_weights(
    declared: Sequence[Declaration], seed: int, report: Report, layout: Layout | None = None
) -> list[jax.Array]:
    over = layout or own_device()

    def draw_one(weight: Declaration) -> list[jax.Array]:
        if weight.is_tiled:
            drawn = {leaf: np.asarray(_leaf(weight, leaf, seed, over)) for leaf in weight.plain}
            return placed_in_tiles(weight, over, lambda: lambda leaf, region: drawn[leaf][region])
        return [_leaf(weight, leaf, seed, over) for leaf in weight.leaves]

    drawn = fill(declared, draw_one, "drawing weights", report, lambda weights: False)
    return [leaf for leaves in drawn for leaf in leaves]


def _leaf(weight: Declaration, leaf: Leaf, seed: int, layout: Layout) -> jax.Array:
    sharding = layout.sharding(leaf.shape, leaf.axes, leaf.bits)
    number = _constant(weight, leaf)
    if number is not None:
        return full(leaf.shape, number, leaf.dtype, sharding)
    draw = Draw(
        whole=leaf.shape,
        shape=sharding.shard_shape(leaf.shape),
        dtype=leaf.dtype,
        spread=_SPREADS[weight.packing.kind] if weight.packing else weight.spread or 0.0,
    )
    begins = np.asarray(starts(leaf.shape, sharding), np.uint32)
    parts = rows_of(weight.source, leaf.shape[0], weight.path)
    rows = [drawn_rows(parts, seed, begin, draw.shape[0]) for begin in begins[:, 0].tolist()]
    drawn = _program(draw, beside(sharding))(np.concatenate(rows), begins)
    return whole(drawn, leaf.shape, sharding)


def _constant(weight: Declaration, leaf: Leaf) -> float | None:
    """Return the value if all numbers of the array are the same, else None."""
    if leaf.part == "offsets":
        return 0
    if not weight.spread:
        return 1 if weight.spread is None else 0
    if leaf.part == "scales" and weight.packing is not None:
        return weight.spread / _SPREADS[weight.packing.kind]
    return None


@functools.cache
def _program(draw: Draw, own: NamedSharding) -> Callable[..., Any]:
    """Compile a program in which each local device draws its own part."""
    each = jax.shard_map(
        lambda rows, begins: draw.region(rows, begins[0]),
        mesh=own.mesh,
        in_specs=(PartitionSpec(OWN), PartitionSpec(OWN)),
        out_specs=PartitionSpec(OWN),
        check_vma=False,
    )
    # Decide by the whole weight, not the part: numbers must not depend on the sharding.
    small = math.prod(draw.whole) <= _SMALL
    return jax.jit(each, compiler_options=_UNOPTIMISED if small else None)
