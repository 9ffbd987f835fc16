"""Quantised weights on the device, and multiplying by them.

weight = values * scales + offsets, a scale and an offset for each block of a row; int8, int4 and
float8_e4m3fn values are arrays of those dtypes, which XLA packs as tightly as the device can.

XLA:CPU has a fast product for int8 by int8 and none for int8 by bfloat16. There a few rows times a
whole-row int8 or int4 weight multiply in int8: each activation becomes two int8 numbers, the
rounded one and 254 times what rounding left, so that nothing visible is lost and the weight is
still read once. (One int8 number per activation, as in https://arxiv.org/abs/2208.07339 without the
outlier split, moved the logits of SmolLM2 ten times further.) Everything else is dequantised on the
way into the product, which on a CPU saves memory, not time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from model_server.checkpoints.packed import Packing

_DTYPES = {"int8": jnp.int8, "int4": jnp.int4, "float8_e4m3fn": jnp.float8_e4m3fn}


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Quantized:
    """A weight [..., out, in] in small numbers."""

    values: jax.Array  # [..., out, in]
    scales: jax.Array  # f32[..., out, in / block]
    offsets: jax.Array | None  # f32[..., out, in / block]
    dtype: Any = field(metadata={"static": True})  # that it is dequantised to

    def dequantized(self) -> jax.Array:
        """dtype[..., out, in]."""
        return _widen(self.values, self.scales, self.offsets, self.dtype)

    def rows(self, index: jax.Array) -> jax.Array:
        """f32[T, in]: some rows of a matrix, dequantised."""

        def take(array: jax.Array | None) -> jax.Array | None:
            return None if array is None else array.at[index].get(mode="clip")

        return _widen(take(self.values), take(self.scales), take(self.offsets), jnp.float32)

    def project(self, x: jax.Array) -> jax.Array:
        """[T, in] times the matrix, transposed: f32[T, out]."""
        if self.scales.shape[-1] > 1 or self.offsets is not None:
            return _dot(x.astype(self.dtype), self.dequantized(), jnp.float32)
        if _few_rows_on_cpu(x) and self.values.dtype != jnp.float8_e4m3fn:
            return _dot_int8(x, self.values) * self.scales[:, 0]
        wide = _dot(x.astype(self.dtype), self.values.astype(self.dtype), jnp.float32)
        return wide * self.scales[:, 0]


def placeholder(shape: tuple[int, ...], packing: Packing, dtype: Any) -> Quantized:
    """Zeros of the shapes that a weight of `shape` has when packed so."""
    *outer, inputs = shape
    blocks = (*outer, 1 if packing.block is None else inputs // packing.block)
    return Quantized(
        values=jnp.zeros(shape, _DTYPES[packing.kind]),
        scales=jnp.zeros(blocks, jnp.float32),
        offsets=jnp.zeros(blocks, jnp.float32) if packing.offset else None,
        dtype=dtype,
    )


_FEW_ROWS = 64  # beyond, a bfloat16 product is faster although the weight is widened first


def _few_rows_on_cpu(x: jax.Array) -> bool:
    return jax.default_backend() == "cpu" and x.shape[0] <= _FEW_ROWS


def _dot_int8(x: jax.Array, values: jax.Array) -> jax.Array:
    """f32[T, in] times int8[out, in], transposed, in one int8 product of 2 T rows."""
    step = jnp.maximum(jnp.max(jnp.abs(x), axis=-1, keepdims=True), 1e-30) / 127.0
    high = jnp.round(x / step)
    low = jnp.round((x / step - high) * 254.0)
    both = jnp.concatenate([high, low]).astype(jnp.int8)
    summed = _dot(both, values.astype(jnp.int8), jnp.int32).astype(jnp.float32)
    of_high, of_low = jnp.split(summed, 2)
    return (of_high + of_low / 254.0) * step


def _dot(x: jax.Array, kernel: jax.Array, result: Any) -> jax.Array:
    return jax.lax.dot_general(x, kernel, (((1,), (1,)), ((), ())), preferred_element_type=result)


def _widen(values: Any, scales: Any, offsets: Any, dtype: Any) -> jax.Array:
    blocked = values.reshape(*scales.shape, -1).astype(jnp.float32) * scales[..., None]
    if offsets is not None:
        blocked += offsets[..., None]
    return blocked.astype(dtype).reshape(values.shape)
