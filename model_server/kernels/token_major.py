"""Pages with the tokens of a head one after the other: what a GPU reads in whole lines.

A token's keys are one run of memory, so that a program loads them with wide reads through the page
table, and a write is one row of a table of rows.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from model_server.kernels.pages import CacheShape, LayerPages, page_arrays, stored


def token_major_shapes(
    cache: CacheShape, pages: int, page_size: int, dtype: jnp.dtype
) -> LayerPages:
    """Keys [P + 1, K, G, Q], values [P + 1, K, G, W], scales f32[P + 1, K, G]."""
    slots = (pages + 1, cache.kv_heads, page_size)
    return page_arrays(cache, (*slots, cache.key_dim), (*slots, cache.value_dim), slots, dtype)


def write_rows(
    layer: LayerPages,
    keys: jax.Array,  # [T, K, Q]
    values: jax.Array | None,  # [T, K, W]; None: the keys are the values too
    pages: jax.Array,  # i32[T]
    offsets: jax.Array,  # i32[T]
) -> LayerPages:
    """Store token t at `offsets[t]` of page `pages[t]`; in place when the pages are donated."""
    _, kv_heads, page_size, _ = layer.keys.shape
    heads = jnp.arange(kv_heads)
    rows = (pages[:, None] * kv_heads + heads) * page_size + offsets[:, None]  # i32[T, K]
    small, scales = stored(keys, layer.keys.dtype)
    layer = layer._replace(
        keys=_placed(layer.keys, small, rows), key_scales=_placed(layer.key_scales, scales, rows)
    )
    if layer.values is None or values is None:
        return layer
    small, scales = stored(values, layer.values.dtype)
    return layer._replace(
        values=_placed(layer.values, small, rows),
        value_scales=_placed(layer.value_scales, scales, rows),
    )


def _placed(held: jax.Array | None, new: jax.Array, rows: jax.Array) -> jax.Array | None:
    """One flat table of rows: XLA transposes all pages for a scatter into dimensions apart."""
    if held is None:
        return None
    table = held.reshape(-1, *held.shape[3:])
    return table.at[rows].set(new, mode="promise_in_bounds").reshape(held.shape)
