"""int4 arrays as bytes, two numbers each, and back: how they cross into a compiled call.

jax (0.10 to 0.12) packs int4 arrays on the device but says that they are not, and a program
compiled ahead of time then refuses them. Both directions are a change of view, not of bytes.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec


def as_bytes(array: jax.Array) -> jax.Array:
    """int4[..., n] as u8[..., n / 2], where it is; any other array as it stands."""
    if array.dtype != jnp.int4:
        return array
    return jax.jit(_packed, out_shardings=_halved(array))(array)


def from_bytes(array: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """The inverse, given the dtype that the array had."""
    if dtype != jnp.int4:
        return array
    return jax.lax.bitcast_convert_type(array, jnp.int4).reshape(*array.shape[:-1], -1)


def _packed(array: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type(array.reshape(*array.shape[:-1], -1, 2), jnp.uint8)


def _halved(array: jax.Array) -> jax.sharding.Sharding:
    """The same devices hold the same numbers, unless that would cut a byte in two."""
    sharding = array.sharding
    if not isinstance(sharding, NamedSharding):
        return sharding
    last = sharding.shard_shape(array.shape)[-1]
    spec = [*sharding.spec, *[None] * (array.ndim - len(sharding.spec))]
    return NamedSharding(sharding.mesh, PartitionSpec(*spec[:-1], None if last % 2 else spec[-1]))
