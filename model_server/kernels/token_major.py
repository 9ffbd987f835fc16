"""Page layout with a head's tokens contiguous, for GPUs.

A token's keys are contiguous memory, which programs load through the page table in wide reads.
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


def write_tokens(
    layer: LayerPages,
    keys: jax.Array,  # [T, K, Q]
    values: jax.Array | None,  # [T, K, W]; None: the keys double as values
    pages: jax.Array,  # i32[T]
    offsets: jax.Array,  # i32[T]
) -> LayerPages:
    """Store token t at `offsets[t]` of page `pages[t]`; in place if the pages are donated."""

    def placed(held: jax.Array | None, new: jax.Array) -> jax.Array | None:
        if held is None:
            return None
        return held.at[pages, :, offsets].set(new, mode="promise_in_bounds")

    small, scales = stored(keys, layer.keys.dtype)
    layer = layer._replace(
        keys=placed(layer.keys, small), key_scales=placed(layer.key_scales, scales)
    )
    if layer.values is None or values is None:
        return layer
    small, scales = stored(values, layer.values.dtype)
    return layer._replace(
        values=placed(layer.values, small), value_scales=placed(layer.value_scales, scales)
    )
