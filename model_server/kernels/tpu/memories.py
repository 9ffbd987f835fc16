"""Memories of recurrent layers on a TPU: one token of each decode row, in place.

A grid step reads the memories of some heads from their page, adds a token, reads an output from
them and writes them back. XLA gathers the memories of all rows, changes them and scatters them:
three times the bytes.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from model_server.kernels.states import MemoryTokens

_BLOCK_BYTES = 2**20  # of memories per grid step; four such blocks are in VMEM


class Pages(NamedTuple):
    """Pages of the memories of D rows."""

    reads: jax.Array  # i32[D]
    writes: jax.Array  # i32[D]
    fresh: jax.Array  # bool[D]: begins with nothing


def remember(
    memory: jax.Array,  # f32[P + 1, H, A, B]
    pages: Pages,
    tokens: MemoryTokens,  # [D, H, ...]
    *,
    interpret: Any = False,
) -> tuple[jax.Array, jax.Array]:
    """Return the outputs f32[D, H, A or B] and the memories with one token of each row added."""
    rows, heads = tokens.decay.shape
    _, _, high, wide = memory.shape
    each = _heads_per_step(heads, 4 * high * wide)
    groups = heads // each

    def held(page: int) -> pl.BlockSpec:
        shape = (1, each, high, wide)
        return pl.BlockSpec(shape, lambda row, group, *scalars: (scalars[page][row], group, 0, 0))

    def vectors(size: int) -> pl.BlockSpec:
        return pl.BlockSpec((1, 1, each, size), lambda row, group, *_: (row, group, 0, 0))

    def grouped(array: jax.Array) -> jax.Array:
        return array.reshape(rows, groups, each, -1)

    made_size = high if tokens.rate is None else wide
    decay = jnp.exp(tokens.decay)
    rate = decay if tokens.rate is None else tokens.rate
    written, made = pl.pallas_call(
        functools.partial(_kernel, heads=heads, each=each, corrects=tokens.rate is not None),
        out_shape=(
            jax.ShapeDtypeStruct(memory.shape, memory.dtype)
            if interpret
            else pltpu.HBM(memory.shape, memory.dtype),
            jax.ShapeDtypeStruct((rows, groups, each, made_size), jnp.float32),
        ),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=5,
            grid=(rows, groups),
            in_specs=[held(0), *(vectors(part.shape[-1]) for part in tokens[:3])],
            out_specs=[held(1), vectors(made_size)],
        ),
        input_output_aliases={5: 0},
        interpret=interpret,
    )(
        pages.reads,
        pages.writes,
        pages.fresh.astype(jnp.int32),
        decay.reshape(-1),
        rate.reshape(-1),
        _kept_in_hbm(memory, interpret),
        *map(grouped, tokens[:3]),
    )
    return made.reshape(rows, heads, -1), written


def _kept_in_hbm(memory: jax.Array, interpret: Any) -> jax.Array:
    """Pin a pool: XLA may otherwise move a small one to on-chip memory and back in every step."""
    return memory if interpret else pltpu.with_memory_space_constraint(memory, pltpu.HBM)


def _heads_per_step(heads: int, size: int) -> int:
    """Return a divisor of the heads of so many bytes each."""
    fitting = max(1, _BLOCK_BYTES // size)
    return max(count for count in range(1, heads + 1) if heads % count == 0 and count <= fitting)


def _kernel(
    reads: Any,
    writes: Any,
    fresh: Any,  # i32[D]
    decay: Any,  # f32[D * H]
    rate: Any,  # f32[D * H]
    held: Any,  # f32[1, E, A, B]
    column: Any,  # f32[1, 1, E, A]
    row: Any,  # f32[1, 1, E, B]
    read: Any,  # f32[1, 1, E, A or B]
    left: Any,  # f32[1, E, A, B]
    made: Any,  # f32[1, 1, E, A or B]
    *,
    heads: int,
    each: int,
    corrects: bool,
) -> None:
    at, group = pl.program_id(0), pl.program_id(1)
    begins = jnp.full(held.shape[2:], fresh[at]) != 0
    for head in range(each):
        scalar, one = at * heads + group * each + head, slice(head, head + 1)
        # Of a page that is not read the numbers may be none.
        was = jnp.where(begins, 0.0, held[0, head] * decay[scalar])
        added, given = _upright(column[0, 0, one]), row[0, 0, one]
        if corrects:
            given = rate[scalar] * (given - jnp.sum(was * added, axis=0, keepdims=True))
        now = was + added * given
        left[0, head] = now
        wanted = read[0, 0, one]
        if corrects:
            made[0, 0, one] = jnp.sum(now * _upright(wanted), axis=0, keepdims=True)
        else:
            made[0, 0, one] = _flat(jnp.sum(now * wanted, axis=1, keepdims=True))


def _upright(row: jax.Array) -> jax.Array:
    """Turn f32[1, N] into f32[N, 1]."""
    return jnp.sum(jnp.where(_diagonal(row.shape[1]), row, 0.0), axis=1, keepdims=True)


def _flat(column: jax.Array) -> jax.Array:
    """Turn f32[N, 1] into f32[1, N]."""
    return jnp.sum(jnp.where(_diagonal(column.shape[0]), column, 0.0), axis=0, keepdims=True)


def _diagonal(size: int) -> jax.Array:
    rows, columns = (jax.lax.broadcasted_iota(jnp.int32, (size, size), axis) for axis in (0, 1))
    return rows == columns
