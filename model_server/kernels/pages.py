"""Where keys and values live: allocation of page arrays, writing new tokens into them.

Page 0 is scratch: padding rows write there and nobody reads it.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class LayerPages(NamedTuple):
    """The pages of one layer."""

    keys: jax.Array  # [P + 1, K, Q, G]
    values: jax.Array  # [P + 1, K, G, Q]


def allocate(
    layers: int, pages: int, page_size: int, kv_heads: int, head_dim: int, dtype: jnp.dtype
) -> tuple[LayerPages, ...]:
    """Zeroed pages for every layer, scratch page included."""
    count = pages + 1
    return tuple(
        LayerPages(
            jnp.zeros((count, kv_heads, head_dim, page_size), dtype),
            jnp.zeros((count, kv_heads, page_size, head_dim), dtype),
        )
        for _ in range(layers)
    )


def bytes_per_page(
    layers: int, page_size: int, kv_heads: int, head_dim: int, dtype: jnp.dtype
) -> int:
    """Bytes that one page takes up over all layers."""
    return 2 * layers * page_size * kv_heads * head_dim * jnp.dtype(dtype).itemsize


def write(
    layer: LayerPages,
    keys: jax.Array,  # [T, K, Q]
    values: jax.Array,  # [T, K, Q]
    pages: jax.Array,  # i32[T]
    offsets: jax.Array,  # i32[T]
) -> LayerPages:
    """Store token t at `offsets[t]` of page `pages[t]`; in place when the pages are donated."""
    keys = keys.astype(layer.keys.dtype)
    values = values.astype(layer.values.dtype)
    return LayerPages(
        layer.keys.at[pages, :, :, offsets].set(keys, mode="promise_in_bounds"),
        layer.values.at[pages, :, offsets].set(values, mode="promise_in_bounds"),
    )
