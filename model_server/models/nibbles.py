"""int4 arrays as bytes, two numbers each, for passing into a compiled call.

jax (0.10 to 0.12) packs int4 arrays on the device but reports them as unpacked, so a program
compiled ahead of time refuses them. Both directions only change the view, not the bytes.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from model_server.kernels.own_devices import parts_of, whole


def as_bytes(array: jax.Array) -> jax.Array:
    """View int4[..., n] as u8[..., n / 2] in place; other arrays pass through."""
    if array.dtype != jnp.int4:
        return array
    parts = parts_of(array)
    packed = jax.jit(packed_nibbles, out_shardings=parts.sharding)(parts)
    return whole(packed, (*array.shape[:-1], array.shape[-1] // 2), array.sharding)


def byte_shape(array: Any) -> jax.ShapeDtypeStruct:
    """Shape and sharding that `as_bytes` returns for this array."""
    if array.dtype != jnp.int4:
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding)
    shape = (*array.shape[:-1], array.shape[-1] // 2)
    return jax.ShapeDtypeStruct(shape, jnp.uint8, sharding=array.sharding)


def unpacked(array: jax.Array) -> jax.Array:
    """Cast u8[..., n / 2] to int4[..., n]; other arrays pass through."""
    if array.dtype != jnp.uint8:
        return array
    return jax.lax.bitcast_convert_type(array, jnp.int4).reshape(*array.shape[:-1], -1)


def packed_nibbles(array: jax.Array) -> jax.Array:
    """Cast int4[..., n] to u8[..., n / 2]; other arrays pass through."""
    if array.dtype != jnp.int4:
        return array
    return jax.lax.bitcast_convert_type(array.reshape(*array.shape[:-1], -1, 2), jnp.uint8)
