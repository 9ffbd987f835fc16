"""How pages lie on a TPU: tokens along sublanes, a head's numbers along lanes.

Lanes come in hundreds and twenty-eights, so shapes here are padded to whole ones: what the memory
plan counts is what the device holds. Where keys and values fit the same lanes together, as heads of
64 do, they share them. Knows nothing of kernels.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from model_server.kernels.pages import CacheShape, LayerPages, page_arrays, stored
from model_server.kernels.refusal import KernelRefusal

LANES = 128
SUBLANES = 8


def lanes(numbers: int) -> int:
    """So many numbers, padded to whole lanes."""
    return -(-numbers // LANES) * LANES


def shared(key_dim: int, value_dim: int) -> bool:
    """Are keys and values stored in the same rows, the values behind the keys?"""
    return bool(value_dim) and lanes(key_dim + value_dim) < lanes(key_dim) + lanes(value_dim)


def tpu_shapes(cache: CacheShape, pages: int, page_size: int, dtype: jnp.dtype) -> LayerPages:
    """The pages of a layer; a page's scales lie along lanes. Raises KernelRefusal."""
    if page_size % SUBLANES:
        raise KernelRefusal(
            f"the page size is {page_size}; on a TPU it has to be a multiple of {SUBLANES}: "
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
    """New keys and values [T, K, Q] as the pages will hold them, but f32 and in parts of LANES.

    Rows are [parts, K, T, LANES]: the kernel reads such rows from any token on, wider ones it
    could not. Scales are [K, 1, T].
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
