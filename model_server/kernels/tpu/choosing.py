"""Attention to chosen tokens on one TPU device: scores, the choice among them, and attention.

A row of a page holds the latent vector and, in lanes of its own where its padding leaves room, the
key for choosing: scores then read only those, and attention only the others.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from model_server.kernels.chosen import EVERY, Choosing, Chosen
from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import LayerPages
from model_server.kernels.tpu import program, scores
from model_server.kernels.tpu.pages import lanes


def attend_to_chosen(
    batch: PagedBatch,
    layer: LayerPages,
    q: jax.Array,  # f32[T, H, Q]
    k: jax.Array,  # f32[T, 1, Q + I]
    choosing: Choosing | Chosen,
    *,
    most: int,
    scale: float,
    interpret: Any = False,
) -> tuple[jax.Array, LayerPages, Chosen]:
    """As `chosen.attend_to_chosen`. Returns f32[T, H, Q]. Raises KernelRefusal."""
    _, _, page_size, width = layer.keys.shape
    mixed, index = q.shape[2], k.shape[2] - q.shape[2]
    first = max(mixed, width - lanes(index))
    gap = ((0, 0), (0, 0), (0, first - mixed))
    k = jnp.concatenate([jnp.pad(k[..., :mixed], gap), k[..., mixed:]], axis=-1)
    chosen, written = choosing if isinstance(choosing, Chosen) else EVERY, False
    if isinstance(choosing, Choosing) and batch.decode_tables.shape[1] * page_size > most:
        found, layer = scores.score(batch, layer, k, choosing, first=first, interpret=interpret)
        chosen, written = _chosen(batch, found, most), True
    attended, layer = program.attend(
        *(batch, layer, q, k, None),
        scale=scale,
        softcap=None,
        window=None,
        interpret=interpret,
        chosen=chosen,
        reads=min(lanes(mixed), width),
        writes=not written,
    )
    return attended, layer, chosen


def _chosen(batch: PagedBatch, found: list[jax.Array], most: int) -> Chosen:
    of_rows = [of for of in (batch.decode_limits, batch.block_limits) if of.size]
    made = iter([highest(*each, most) for each in zip(found, of_rows, strict=True)])
    decodes = next(made) if batch.decode_limits.size else None
    return Chosen(decodes, next(made) if batch.block_limits.size else None)


def highest(found: jax.Array, limits: jax.Array, most: int) -> jax.Array:
    """Mark the highest scores: bool[N, C, S]; of equal ones the earliest, as `lax.top_k` does.

    A mark counts from the least score that is chosen: scattering indices takes a TPU far longer.
    """
    at = jax.lax.broadcasted_iota(jnp.int32, found.shape, 2)
    found = jnp.where(at < limits[..., None], found, -jnp.inf)
    order = jax.lax.bitcast_convert_type(found, jnp.int32)  # integers in the order of the numbers
    order = jnp.where(order < 0, order ^ jnp.iinfo(jnp.int32).max, order)
    least = jax.lax.top_k(order, most)[0][..., -1:]
    above, equal = order > least, order == least
    left = most - above.sum(-1, keepdims=True, dtype=jnp.int32)
    return above | (equal & (jnp.cumsum(equal, axis=-1, dtype=jnp.int32) <= left))
