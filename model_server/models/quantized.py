"""Quantised weights on the device, and multiplying by them.

weight = values * scales + offsets, a scale and an offset for each block of a row; int8, int4 and
float8_e4m3fn values are arrays of those dtypes, which XLA packs as tightly as the device can.

XLA:CPU has a fast product for int8 by int8 and none for int8 by bfloat16. There a few rows times a
whole-row int8 or int4 weight multiply in int8: each activation becomes two int8 numbers, the
rounded one and 254 times what rounding left, so that nothing visible is lost and the weight is
still read once. (One int8 number per activation, as in https://arxiv.org/abs/2208.07339 without the
outlier split, moved the logits of SmolLM2 ten times further.) Everything else is dequantised on the
way into the product, which on a CPU saves memory, not time.

On a TPU XLA reads int8 and float8 with a scale per row once, and widens them on the way into the
product. Blocks, offsets and int4 it would write out wide: those go through a kernel, and int4 stays
in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

from model_server.checkpoints.packed import Packing
from model_server.kernels.small_numbers import Packed
from model_server.models.divided_product import can_multiply, multiply
from model_server.models.nibbles import packed_nibbles, unpacked
from model_server.models.placement import Placement

_DTYPES = {"int8": jnp.int8, "int4": jnp.int4, "float8_e4m3fn": jnp.float8_e4m3fn}


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Quantized:
    """A weight [..., out, in] in small numbers."""

    values: jax.Array  # [..., out, in]; int4 may come as bytes, u8[..., out, in / 2]
    scales: jax.Array  # f32[..., out, in / block]
    offsets: jax.Array | None  # f32[..., out, in / block]
    dtype: Any = field(metadata={"static": True})  # that it is dequantised to
    place: Placement = field(default=Placement(), metadata={"static": True})

    def dequantized(self) -> jax.Array:
        """dtype[..., out, in]."""
        return _widen(unpacked(self.values), self.scales, self.offsets, self.dtype)

    def rows(self, index: jax.Array) -> jax.Array:
        """f32[T, in]: some rows of a matrix, dequantised."""

        def take(array: jax.Array | None) -> jax.Array | None:
            return None if array is None else array.at[index].get(mode="clip")

        values: Any = take(self.values)
        return _widen(unpacked(values), take(self.scales), take(self.offsets), jnp.float32)

    def project(self, x: jax.Array) -> jax.Array:
        """[T, in] times the matrix, transposed: f32[T, out]."""
        if self.place.platform == "tpu" and not self._is_fused_by_xla:
            packed = self.packed()
            if can_multiply(packed, self.place):
                return multiply(x.astype(self.dtype), packed, self.place)
        if self.scales.shape[-1] > 1 or self.offsets is not None:
            return _dot(x.astype(self.dtype), self.dequantized(), jnp.float32)
        values = unpacked(self.values)
        if self._in_int8(x):
            return _dot_int8(x, values) * self.scales[:, 0]
        wide = _dot(x.astype(self.dtype), values.astype(self.dtype), jnp.float32)
        return wide * self.scales[:, 0]

    def packed(self) -> Packed:
        """As a TPU kernel takes it: int4 in bytes, whoever held it."""
        return Packed(packed_nibbles(self.values), self.scales, self.offsets)

    def on_program(self) -> Quantized:
        """As a program computes with it, given int4 as the bytes in which it came."""
        if self.place.platform == "tpu":
            return self
        return replace(self, values=unpacked(self.values))

    @property
    def _is_fused_by_xla(self) -> bool:
        """XLA:TPU widens these on the way into the product, and reads them once."""
        whole_rows = self.scales.shape[-1] == 1 and self.offsets is None
        return whole_rows and self.values.dtype in (jnp.int8, jnp.float8_e4m3fn)

    def _in_int8(self, x: jax.Array) -> bool:
        few = self.place.platform == "cpu" and x.shape[0] <= _FEW_ROWS
        return few and self.values.dtype != jnp.float8_e4m3fn


def placeholder(
    shape: tuple[int, ...], packing: Packing, dtype: Any, place: Placement
) -> Quantized:
    """Zeros of the shapes that a weight of `shape` has when packed so."""
    *outer, inputs = shape
    blocks = (*outer, 1 if packing.block is None else inputs // packing.block)
    return Quantized(
        values=jnp.zeros(shape, _DTYPES[packing.kind]),
        scales=jnp.zeros(blocks, jnp.float32),
        offsets=jnp.zeros(blocks, jnp.float32) if packing.offset else None,
        dtype=dtype,
        place=place,
    )


_FEW_ROWS = 64  # beyond, a bfloat16 product is faster although the weight is widened first


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
