"""int4 arrays as bytes, two numbers each, and back: how they cross into a compiled call.

jax (0.10 to 0.12) packs int4 arrays on the device but says that they are not, and a program
compiled ahead of time then refuses them. Both directions are a change of view, not of bytes.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from model_server.kernels.own_devices import parts_of, whole


def as_bytes(array: jax.Array) -> jax.Array:
    """int4[..., n] as u8[..., n / 2], where it is; any other array as it stands."""
    if array.dtype != jnp.int4:
        return array
    parts = parts_of(array)
    packed = jax.jit(packed_nibbles, out_shardings=parts.sharding)(parts)
    return whole(packed, (*array.shape[:-1], array.shape[-1] // 2), array.sharding)


def byte_shape(array: Any) -> jax.ShapeDtypeStruct:
    """What `as_bytes` makes of an array of this shape and sharding."""
    if array.dtype != jnp.int4:
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding)
    shape = (*array.shape[:-1], array.shape[-1] // 2)
    return jax.ShapeDtypeStruct(shape, jnp.uint8, sharding=array.sharding)


def unpacked(array: jax.Array) -> jax.Array:
    """u8[..., n / 2] as int4[..., n]; any other array as it stands."""
    if array.dtype != jnp.uint8:
        return array
    return jax.lax.bitcast_convert_type(array, jnp.int4).reshape(*array.shape[:-1], -1)


def packed_nibbles(array: jax.Array) -> jax.Array:
    """int4[..., n] as u8[..., n / 2]; any other array as it stands."""
    if array.dtype != jnp.int4:
        return array
    return jax.lax.bitcast_convert_type(array.reshape(*array.shape[:-1], -1, 2), jnp.uint8)
