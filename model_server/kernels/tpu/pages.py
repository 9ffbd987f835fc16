"""Page layout on TPUs: tokens along sublanes, a head's numbers along lanes.

Lanes come in multiples of 128, so shapes are padded to them and the memory plan counts what the
device really holds. Keys and values share lanes where they fit together, as heads of 64 do.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from model_server.kernels.paged import KernelRefusal
from model_server.kernels.pages import CacheShape, LayerPages, page_arrays, stored

LANES = 128
SUBLANES = 8


def lanes(numbers: int) -> int:
    """Round up to whole lanes."""
    return -(-numbers // LANES) * LANES


def shared(key_dim: int, value_dim: int) -> bool:
    """True if keys and values share rows, the values after the keys."""
    return bool(value_dim) and lanes(key_dim + value_dim) < lanes(key_dim) + lanes(value_dim)


def tpu_shapes(cache: CacheShape, pages: int, page_size: int, dtype: jnp.dtype) -> LayerPages:
    """Pages of a layer; a page's scales lie along lanes. Raises KernelRefusal."""
    if page_size % SUBLANES:
        raise KernelRefusal(
            f"the page size is {page_size}; on a TPU it must be a multiple of {SUBLANES}: "
            "change --page_size"
        )
    heads, both = (pages + 1, cache.kv_heads), shared(cache.key_dim, cache.value_dim)
    keys = lanes(cache.key_dim + (cache.value_dim if both else 0))
    arrays = page_arrays(
        cache,
        (*heads, page_size, keys),
        (*heads, page_size, lanes(cache.value_dim)),
        (*heads, 1, lanes(page_size)),
        dtype,
    )
    return arrays._replace(values=None) if both else arrays


def new_tokens(layer: LayerPages, k: jax.Array, v: jax.Array | None) -> LayerPages:
    """New keys and values [T, K, Q] as pages hold them, but f32 and split by LANES.

    Rows are [parts, K, T, LANES], because the kernel can read rows of that width, and no wider,
    from any token. Scales are [K, 1, T].
    """
    keys, key_scales = stored(k, layer.keys.dtype)
    if v is None:
        return LayerPages(_rows(keys, layer.keys), None, _scales(layer.key_scales, key_scales))
    values, value_scales = stored(v, layer.keys.dtype)
    if layer.values is None:
        keys, rows = jnp.concatenate([keys, values], axis=-1), None
    else:
        rows = _rows(values, layer.values)
    return LayerPages(
        _rows(keys, layer.keys),
        rows,
        _scales(layer.key_scales, key_scales),
        _scales(layer.value_scales, value_scales),
    )


def _rows(small: jax.Array, pool: jax.Array) -> jax.Array:
    tokens, heads, width = small.shape
    wide = jnp.pad(small, ((0, 0), (0, 0), (0, pool.shape[-1] - width))).astype(jnp.float32)
    return wide.reshape(tokens, heads, -1, LANES).transpose(2, 1, 0, 3)


def _scales(pool: jax.Array | None, scales: jax.Array) -> jax.Array | None:
    return None if pool is None else scales.T[:, None]
