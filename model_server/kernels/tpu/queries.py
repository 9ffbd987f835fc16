"""Layout of the TPU kernel's queries and results, for each kind of unit.

Decodes run many at a time, with a query's heads left unpadded where padding would add rows; parts
of prompt blocks run one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from model_server.kernels.tpu.sizes import AttentionShapes, Sizes


@dataclass(frozen=True, slots=True)
class UnitKind:
    """Units of one shape: decodes, or parts of prompt blocks."""

    first: int  # index of the first unit
    units: int
    at_once: int  # units per grid step
    first_step: int
    rows: int  # per KV head, padded
    per_query: int  # rows that see the same tokens
    packed: bool  # a query's heads are contiguous, not padded per KV head

    @property
    def steps(self) -> int:
        return self.units // self.at_once

    def spec(self, shape: Sequence[int]) -> pl.BlockSpec:
        """Block spec of queries or results [units, ...]; other kinds' steps keep the last block."""

        def index(step: Any, *_: Any) -> tuple[Any, ...]:
            own = jnp.clip(step - self.first_step, 0, self.steps - 1)
            return (own, *[0] * (len(shape) - 1))

        return pl.BlockSpec((self.at_once, *shape[1:]), index)


def kinds_of(problem: AttentionShapes, sizes: Sizes) -> tuple[UnitKind, ...]:
    parts = problem.blocks * (problem.block // sizes.queries) if problem.blocks else 0
    decodes = UnitKind(
        first=0,
        units=problem.decodes,
        at_once=sizes.decode_units,
        first_step=0,
        rows=sizes.decode_rows,
        per_query=sizes.decode_rows,
        packed=sizes.decode_rows != problem.rows,
    )
    prompts = UnitKind(
        first=problem.decodes,
        units=parts,
        at_once=1,
        first_step=decodes.steps,
        rows=sizes.block_rows,
        per_query=problem.rows,
        packed=False,
    )
    return tuple(kind for kind in (decodes, prompts) if kind.units)


def queries_of(
    problem: AttentionShapes, sizes: Sizes, kinds: Sequence[UnitKind], q: jax.Array
) -> list[jax.Array]:
    """Queries per kind in its layout: [units, H, lanes] or [units, K, rows, lanes]."""
    p, s = problem, sizes
    q = jnp.pad(q, ((0, 0), (0, 0), (0, p.key_lanes - q.shape[2])))
    found = []
    for kind in kinds:
        if kind.first < p.decodes:
            mine = q[: p.decodes]
            found.append(mine if kind.packed else mine.reshape(-1, p.kv_heads, p.rows, p.key_lanes))
            continue
        mine = q[p.decodes :].reshape(-1, s.queries, p.kv_heads, p.rows, p.key_lanes)
        mine = mine.swapaxes(1, 2).reshape(-1, p.kv_heads, s.queries * p.rows, p.key_lanes)
        more = kind.rows - mine.shape[2]
        found.append(jnp.pad(mine, ((0, 0), (0, 0), (0, more), (0, 0))).astype(p.products))
    return found


def sinks_of(
    problem: AttentionShapes, sizes: Sizes, kinds: Sequence[UnitKind], sinks: jax.Array | None
) -> list[jax.Array]:
    """Sinks f32[H] per kind: f32[K, rows, 1], of each row's head; nothing without sinks."""
    if sinks is None:
        return []
    of_heads = sinks.reshape(problem.kv_heads, 1, problem.rows)
    found = []
    for kind in kinds:
        count = 1 if kind.first < problem.decodes else sizes.queries
        rows = jnp.broadcast_to(of_heads, (problem.kv_heads, count, problem.rows))
        rows = rows.reshape(problem.kv_heads, -1, 1)
        found.append(jnp.pad(rows, ((0, 0), (0, kind.rows - rows.shape[1]), (0, 0))))
    return found


def rows_of(problem: AttentionShapes, sizes: Sizes, kind: UnitKind, found: jax.Array) -> jax.Array:
    """Results as f32[tokens, H, lanes]."""
    p, s = problem, sizes
    if kind.first < p.decodes:
        return found.reshape(-1, p.kv_heads * p.rows, p.value_lanes)
    found = found[:, :, : s.queries * p.rows]
    found = found.reshape(-1, p.kv_heads, s.queries, p.rows, p.value_lanes).swapaxes(1, 2)
    return found.reshape(-1, p.kv_heads * p.rows, p.value_lanes)


def result_shape(problem: AttentionShapes, kind: UnitKind) -> jax.ShapeDtypeStruct:
    heads = (problem.kv_heads * problem.rows,) if kind.packed else (problem.kv_heads, kind.rows)
    return jax.ShapeDtypeStruct((kind.units, *heads, problem.value_lanes), jnp.float32)
