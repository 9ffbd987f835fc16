"""Quantised weights on the device, and multiplying by them.

weight = values * scales + offsets, with a scale and an offset per block of a row; int8, int4 and
float8_e4m3fn values are arrays of those dtypes, which XLA packs as tightly as the device allows.
The bits of float4 values are held as int4; their scales, powers of two, as bfloat16, which no other
kind's are.

XLA:CPU has a fast product for int8 by int8 and none for int8 by bfloat16. So a few rows times an
int8 or int4 weight with whole-row scales multiply in int8: each activation becomes two int8
numbers, its rounded value and 254 times the rounding error, which loses nothing visible and still
reads the weight once. (One int8 number per activation, as in https://arxiv.org/abs/2208.07339
without the outlier split, moved the logits of SmolLM2 ten times further.) Everything else is
dequantised before the product, which on a CPU saves memory, not time.

On a TPU XLA reads int8 and float8 with a scale per row once, and widens them inside the product. It
would materialise blocks, offsets and int4 in wide form: those go through a kernel, and int4 stays
in bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

from model_server.checkpoints.packed import FLOAT4, Packing
from model_server.kernels.local_devices import parts_of, whole
from model_server.kernels.small_numbers import Packed, float4_numbers, held_blocks, is_float4
from model_server.models.weights.divided_product import can_multiply, multiply
from model_server.models.weights.sharding import WeightPlacement


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


_DTYPES = {
    "int8": jnp.int8,
    "int4": jnp.int4,
    "float8_e4m3fn": jnp.float8_e4m3fn,
    FLOAT4: jnp.int4,
}


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Quantized:
    """A quantised weight [..., out, in]."""

    values: jax.Array  # [..., out, in]; int4 possibly as bytes, u8[..., out, in / 2]
    scales: jax.Array  # f32[..., out, in / block]; bf16 if the values are float4
    offsets: jax.Array | None  # f32[..., out, in / block]
    dtype: Any = field(metadata={"static": True})  # after dequantising
    place: WeightPlacement = field(default=WeightPlacement(), metadata={"static": True})
    # Blocks of a row; None: as many as there are scales, which may have zeros behind them.
    blocks: int | None = field(default=None, metadata={"static": True})

    def dequantized(self) -> jax.Array:
        scales, offsets = (self._used(part) for part in (self.scales, self.offsets))
        return _widen(unpacked(self.values), scales, offsets, self.dtype)

    def rows(self, index: jax.Array) -> jax.Array:
        """f32[T, in]: these rows of a matrix, dequantised."""

        def take(array: jax.Array | None) -> jax.Array | None:
            return None if array is None else array.at[index].get(mode="clip")

        values: Any = take(self.values)
        scales, offsets = (take(self._used(part)) for part in (self.scales, self.offsets))
        return _widen(unpacked(values), scales, offsets, jnp.float32)

    def project(self, x: jax.Array) -> jax.Array:
        """[T, in] times the transposed matrix: f32[T, out]."""
        if self.place.platform == "tpu" and not self._is_fused_by_xla:
            packed = self.packed()
            if can_multiply(packed, self.place):
                return multiply(x.astype(self.dtype), packed, self.place)
        if self.scales.shape[-1] > 1 or self.offsets is not None or is_float4(self.scales):
            return _dot(x.astype(self.dtype), self.dequantized(), jnp.float32)
        values = unpacked(self.values)
        if self._in_int8(x):
            return _dot_int8(x, values) * self.scales[:, 0][None]
        wide = _dot(x.astype(self.dtype), values.astype(self.dtype), jnp.float32)
        return wide * self.scales[:, 0][None]

    def packed(self) -> Packed:
        return Packed(packed_nibbles(self.values), self.scales, self.offsets, self.blocks)

    def on_program(self) -> Quantized:
        """Convert to the form used inside a program: int4 unpacked from bytes, except on TPUs."""
        if self.place.platform == "tpu":
            return self
        return replace(self, values=unpacked(self.values))

    def _used(self, array: Any) -> Any:
        """Scales or offsets without the zeros behind them."""
        return array if array is None else array[..., : self.blocks]

    @property
    def _is_fused_by_xla(self) -> bool:
        """XLA:TPU widens these inside the product and reads them once."""
        whole_rows = self.scales.shape[-1] == 1 and self.offsets is None
        return whole_rows and self.values.dtype in (jnp.int8, jnp.float8_e4m3fn)

    def _in_int8(self, x: jax.Array) -> bool:
        few = self.place.platform == "cpu" and x.shape[0] <= _FEW_ROWS
        return few and self.values.dtype != jnp.float8_e4m3fn


def placeholder(
    shape: tuple[int, ...],
    packing: Packing,
    dtype: Any,
    place: WeightPlacement,
    zeros: Callable[..., Any] = jnp.zeros,
) -> Quantized:
    """Zeros in the shapes of a weight of `shape` packed this way; zeros: makes each array."""
    *outer, inputs = shape
    blocks = 1 if packing.block is None else inputs // packing.block
    # Shards of the inputs have blocks of their own, with nothing between them.
    beside = len(outer) == 2 and place.platform == "tpu" and place.inputs is None
    held = (*outer, held_blocks(blocks) if beside else blocks)
    return Quantized(
        values=zeros(shape, _DTYPES[packing.kind]),
        scales=zeros(held, jnp.bfloat16 if packing.kind == FLOAT4 else jnp.float32),
        offsets=zeros(held, jnp.float32) if packing.offset else None,
        dtype=dtype,
        place=place,
        blocks=None if held[-1] == blocks else blocks,
    )


_FEW_ROWS = 64  # beyond this a bfloat16 product is faster, even though it widens the weight


def _dot_int8(x: jax.Array, values: jax.Array) -> jax.Array:
    """f32[T, in] times transposed int8[out, in], as one int8 product of 2 T rows."""
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
    numbers = float4_numbers(values) if is_float4(scales) else values.astype(jnp.float32)
    blocked = numbers.reshape(*scales.shape, -1) * scales[..., None].astype(jnp.float32)
    if offsets is not None:
        blocked += offsets[..., None]
    return blocked.astype(dtype).reshape(values.shape)
