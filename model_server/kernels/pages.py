"""Where keys and values live: allocation of page arrays, writing new tokens into them.

Page 0 is scratch: padding rows write there and nobody reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from model_server.kernels.own_devices import full


class LayerPages(NamedTuple):
    """The pages of one layer; in int8 with a scale for every head of every token."""

    keys: jax.Array  # [P + 1, K, Q, G]
    values: jax.Array | None  # [P + 1, K, G, W]; None: the keys are the values too
    key_scales: jax.Array | None = None  # f32[P + 1, K, G]
    value_scales: jax.Array | None = None  # f32[P + 1, K, G]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShape:
    """What one cached token is made of, the same in every layer."""

    layers: int
    kv_heads: int
    key_dim: int
    value_dim: int  # 0: the keys are the values too
    axis: str | None = None  # logical axis of the heads; None: every device holds all

    def bytes_per_page(self, page_size: int, dtype: jnp.dtype) -> int:
        """Bytes that one page takes up over all layers and devices."""
        heads = self.layers * page_size * self.kv_heads
        scales = 4 * (2 if self.value_dim else 1) if dtype == jnp.int8 else 0
        return heads * ((self.key_dim + self.value_dim) * jnp.dtype(dtype).itemsize + scales)


def allocate(
    cache: CacheShape,
    pages: int,
    page_size: int,
    dtype: jnp.dtype,
    sharding: jax.sharding.Sharding | None = None,
) -> tuple[LayerPages, ...]:
    """Zeroed pages for every layer, scratch page included, made where they are to lie."""
    count, heads = pages + 1, cache.kv_heads

    def zeros(shape: tuple[int, ...], of: jnp.dtype) -> jax.Array:
        return jnp.zeros(shape, of) if sharding is None else full(shape, 0, of, sharding)

    def scales() -> jax.Array | None:
        return zeros((count, heads, page_size), jnp.float32) if dtype == jnp.int8 else None

    def one_layer() -> LayerPages:
        keys = zeros((count, heads, cache.key_dim, page_size), dtype)
        if not cache.value_dim:
            return LayerPages(keys, None, scales())
        values = zeros((count, heads, page_size, cache.value_dim), dtype)
        return LayerPages(keys, values, scales(), scales())

    return tuple(one_layer() for _ in range(cache.layers))


def write(
    layer: LayerPages,
    keys: jax.Array,  # [T, K, Q]
    values: jax.Array | None,  # [T, K, W]; None: the keys are the values too
    pages: jax.Array,  # i32[T]
    offsets: jax.Array,  # i32[T]
) -> LayerPages:
    """Store token t at `offsets[t]` of page `pages[t]`; in place when the pages are donated."""
    small, scales = _stored(keys, layer.keys.dtype)
    layer = layer._replace(
        keys=layer.keys.at[pages, :, :, offsets].set(small, mode="promise_in_bounds"),
        key_scales=_with_scales(layer.key_scales, scales, pages, offsets),
    )
    if layer.values is None or values is None:
        return layer
    small, scales = _stored(values, layer.values.dtype)
    return layer._replace(
        values=layer.values.at[pages, :, offsets].set(small, mode="promise_in_bounds"),
        value_scales=_with_scales(layer.value_scales, scales, pages, offsets),
    )


def _stored(numbers: jax.Array, dtype: jnp.dtype) -> tuple[jax.Array, jax.Array]:
    """[T, K, Q] as the pages hold it, and the scales f32[T, K] of int8 pages."""
    if dtype != jnp.int8:
        return numbers.astype(dtype), jnp.ones(numbers.shape[:2], jnp.float32)
    scales = jnp.maximum(jnp.abs(numbers).max(-1), 1e-30) / 127.0
    return jnp.round(numbers / scales[..., None]).astype(jnp.int8), scales


def _with_scales(
    held: jax.Array | None, scales: jax.Array, pages: jax.Array, offsets: jax.Array
) -> jax.Array | None:
    if held is None:
        return None
    return held.at[pages, :, offsets].set(scales, mode="promise_in_bounds")
