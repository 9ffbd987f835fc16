"""Weights in the layout of the native products: tiles of 16 rows, pairs or fours of a row together.

A product reads 64 bytes of a tile at a time, which hold the next numbers of its 16 rows.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from model_server.kernels.aligned import aligned_empty
from model_server.kernels.cpu.native import library
from model_server.kernels.small_numbers import float4_numbers

ROWS = 16  # of a tile
_ALL = np.zeros(0, np.int32)  # as live rows
Shape = tuple[int, int]  # outputs N, inputs K


def plain_shape(shape: Shape, dtype: Any = ml_dtypes.bfloat16) -> tuple[int, ...]:
    """Shape of the tiles of a plain weight: four bytes of a row side by side."""
    (outputs, inputs), together = shape, 4 // np.dtype(dtype).itemsize
    return (_count(outputs), -(-inputs // together), ROWS, together)


def plain_tiles(rows: np.ndarray) -> np.ndarray:
    """Lay out bf16[N, K] as bf16[N / 16, K / 2, 16, 2], or f32[N, K] as f32[N / 16, K, 16, 1],
    rounded up with zeros.
    """
    outputs, inputs = rows.shape
    made = aligned_empty(plain_shape((outputs, inputs), rows.dtype), rows.dtype)
    lay_out_plain(rows, made)
    return made


def lay_out_plain(rows: np.ndarray, tiles: np.ndarray) -> None:
    """As `plain_tiles`, into these."""
    _lay_out("sax_cpu_tile_floats" if tiles.itemsize == 4 else "sax_cpu_tile_halves", rows, tiles)


def tiles_of(weight: jax.Array) -> jax.Array:
    """As `plain_tiles`, within a program."""
    outputs, inputs = weight.shape
    count, parts, _, together = plain_shape((outputs, inputs), weight.dtype)
    whole = jnp.pad(weight, ((0, count * ROWS - outputs), (0, together * parts - inputs)))
    return whole.reshape(count, ROWS, parts, together).transpose(0, 2, 1, 3)


def plain_rows(tiles: jax.Array, index: jax.Array, inputs: int) -> jax.Array:
    """Return [T, K], these rows of the weight."""
    taken = tiles.at[index // ROWS, :, index % ROWS].get(mode="clip")
    return taken.reshape(index.shape[0], -1)[:, :inputs]


def plain_weight(tiles: jax.Array, shape: Shape) -> jax.Array:
    """Return [N, K], the weight as it was before."""
    rows = tiles.transpose(0, 2, 1, 3).reshape(tiles.shape[0] * ROWS, -1)
    return rows[: shape[0], : shape[1]]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def plain_product(
    shape: Shape, x: jax.Array, tiles: jax.Array, live: jax.Array | None = None
) -> jax.Array:
    """[T, K] times the transposed weight [N, K], in its dtype and summed in f32: f32[T, N].

    live: i32[T], the rows that are multiplied in their order, then -1; the others get zeros. None:
    all.
    """
    made = jax.ShapeDtypeStruct((x.shape[0], shape[0]), jnp.float32)
    call = jax.ffi.ffi_call(
        "sax_cpu_floats" if tiles.dtype == made.dtype else "sax_cpu_plain", made
    )
    return call(x.astype(jnp.float32), _ALL if live is None else live, tiles)


def _forward(shape: Shape, x: jax.Array, tiles: jax.Array, live: jax.Array | None) -> Any:
    return plain_product(shape, x, tiles, live), (x, tiles)


def _backward(shape: Shape, kept: Any, change: jax.Array) -> Any:
    x, tiles = kept
    small = change.astype(tiles.dtype)
    of_x = jnp.matmul(small, plain_weight(tiles, shape), preferred_element_type=jnp.float32)
    of_weight = jnp.matmul(small.T, x.astype(tiles.dtype), preferred_element_type=jnp.float32)
    return of_x.astype(x.dtype), tiles_of(of_weight.astype(tiles.dtype)), None


plain_product.defvjp(_forward, _backward)


class ByteTiles(NamedTuple):
    """A quantised weight: scale * value + offset, where a block of a row shares both.

    Scales and offsets are parts, at most 1, of the largest of their row: float16 has the digits of
    a weight of 8 bits, but not the range.
    """

    # u8[N / 16, K / 4 or K / 8, 16, 4]: plus 128; or two of 4 bits, or of float4 bits, plus 8
    values: Any
    scales: Any  # f16[N / 16, K / block, 16]
    offsets: Any | None  # f16[N / 16, K / block, 16]
    units: Any  # f32[N / 16, 2, 16]: of scales, of offsets


class Blocks(Protocol):
    """A quantised weight as checkpoints give it."""

    @property
    def values(self) -> np.ndarray: ...  # i8[N, K]; the bits of float4 as whole numbers of 4 bits

    @property
    def scales(self) -> np.ndarray: ...  # f32[N, K / block]

    @property
    def offsets(self) -> np.ndarray | None: ...  # f32[N, K / block]


class ByteForm(NamedTuple):
    """Sizes of a quantised weight."""

    shape: Shape
    block: int  # numbers of a row that share a scale
    bits: int  # 8 or 4
    offset: bool
    float4: bool = False  # numbers of 4 bits are e2m1
    one_byte: bool = False  # each number of a row becomes one of 8 bits, not two

    @property
    def fits(self) -> bool:
        """True if the native product takes it: 64 bytes hold whole fours, or eights of 4 bits."""
        together = 32 // self.bits
        return self.block % together == 0 and self.shape[1] % self.block == 0

    @property
    def attributes(self) -> dict[str, np.int32]:
        """Attributes of the native products' calls."""
        return {"float4": np.int32(self.float4), "one_byte": np.int32(self.one_byte)}

    def tiles(self, dtypes: Any = jax.ShapeDtypeStruct) -> ByteTiles:
        """Make an array of each part; dtypes: called with shape and dtype."""
        outputs, inputs = self.shape
        count, blocks = _count(outputs), (_count(outputs), inputs // self.block, ROWS)
        return ByteTiles(
            dtypes((count, inputs * self.bits // 32, ROWS, 4), jnp.uint8),
            dtypes(blocks, jnp.float16),
            dtypes(blocks, jnp.float16) if self.offset else None,
            dtypes((count, 2, ROWS), jnp.float32),
        )


def byte_tiles(form: ByteForm, blocks: Blocks) -> ByteTiles:
    """Lay out a quantised weight: values i8[N, K], scales and offsets f32[N, K / block]."""
    made = form.tiles(aligned_empty)
    lay_out_bytes(form, blocks, made)
    return made


def lay_out_bytes(form: ByteForm, blocks: Blocks, made: ByteTiles) -> None:
    """As `byte_tiles`, into these."""
    own = "sax_cpu_tile_bytes" if form.bits == 8 else "sax_cpu_tile_nibbles"
    _lay_out(own, blocks.values.view(np.int8), made.values)
    made.units[:] = 0
    unit = 0.5 if form.float4 else 1.0  # the kernels have twice the number of float4
    for place, (numbers, to) in enumerate(
        zip((blocks.scales, blocks.offsets), (made.scales, made.offsets), strict=True)
    ):
        if numbers is None or to is None:
            continue
        padded = np.zeros((to.shape[0] * ROWS, to.shape[1]), np.float32)
        padded[: len(numbers)] = numbers
        largest = np.maximum(np.abs(padded).max(1), 1e-30)
        to[:] = (padded / largest[:, None]).reshape(-1, ROWS, to.shape[1]).swapaxes(1, 2)
        made.units[:, place] = (unit if place == 0 else 1.0) * largest.reshape(-1, ROWS)


def byte_rows(tiles: ByteTiles, form: ByteForm, index: jax.Array) -> jax.Array:
    """f32[T, K]: these rows of the weight, dequantised."""
    tile, lane = index // ROWS, index % ROWS
    taken = tiles.values.at[tile, :, lane].get(mode="clip")  # u8[T, K / 4 or K / 8, 4]
    if form.bits == 4:
        taken = jnp.stack([taken & 15, taken >> 4], axis=2)
    flat = taken.reshape(index.shape[0], -1)
    if form.float4:
        values = 2 * float4_numbers(flat ^ 8)
    else:
        values = flat.astype(jnp.float32) - (8.0 if form.bits == 4 else 128.0)
    units = tiles.units.at[tile, :, lane].get(mode="clip")  # f32[T, 2]

    def of_blocks(parts: jax.Array, place: int) -> jax.Array:
        mine = parts.at[tile, :, lane].get(mode="clip").astype(jnp.float32)
        return jnp.repeat(mine * units[:, place, None], form.block, axis=1)

    made = values * of_blocks(tiles.scales, 0)
    return made if tiles.offsets is None else made + of_blocks(tiles.offsets, 1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def byte_product(
    form: ByteForm, x: jax.Array, tiles: ByteTiles, live: jax.Array | None = None
) -> jax.Array:
    """[T, K] times the transposed weight [N, K]: f32[T, N]; live: as of `plain_product`.

    Each number of x becomes two of 8 bits, its value and 254 times what is left of it, which loses
    nothing visible; or one (`one_byte`), in steps of at most 64 numbers' own, at half the work. A
    row's bits do not depend on how many rows there are.
    """
    made = jax.ShapeDtypeStruct((x.shape[0], form.shape[0]), jnp.float32)
    offsets = np.zeros((0, 0, 0), np.float16) if tiles.offsets is None else tiles.offsets
    call = jax.ffi.ffi_call("sax_cpu_in_bytes", made)
    rows = _ALL if live is None else live
    given = (rows, tiles.values, tiles.scales, offsets, tiles.units)
    return call(x.astype(jnp.float32), *given, **form.attributes)


def _forward_bytes(form: ByteForm, x: jax.Array, tiles: ByteTiles, live: jax.Array | None) -> Any:
    return byte_product(form, x, tiles, live), (x, tiles)


def _backward_bytes(form: ByteForm, kept: Any, change: jax.Array) -> Any:
    x, tiles = kept
    weight = byte_rows(tiles, form, jnp.arange(form.shape[0]))
    # None: nobody differentiates by small whole numbers.
    return jnp.matmul(change, weight).astype(x.dtype), None, None


byte_product.defvjp(_forward_bytes, _backward_bytes)


@jax.custom_vjp
def dense_product(x: jax.Array, weight: jax.Array, live: jax.Array | None = None) -> jax.Array:
    """f32[T, H, N]: each row of x [T, H, K] times its head's transposed weight [H, N, K].

    The weight, bf16 or f32, lies as it is. Sums are of f32. live: as of `plain_product`.
    """
    made = jax.ShapeDtypeStruct((*x.shape[:2], weight.shape[1]), jnp.float32)
    call = jax.ffi.ffi_call("sax_cpu_dense", made)
    seen = x.astype(weight.dtype).astype(jnp.float32)
    return call(seen, _ALL if live is None else live, weight)


def _forward_dense(x: jax.Array, weight: jax.Array, live: jax.Array | None) -> Any:
    return dense_product(x, weight, live), (x, weight)


def _backward_dense(kept: Any, change: jax.Array) -> Any:
    x, weight = kept
    of_x = jnp.einsum("thn,hnk->thk", change, weight.astype(jnp.float32))
    of_weight = jnp.einsum("thn,thk->hnk", change, x.astype(jnp.float32))
    return of_x.astype(x.dtype), of_weight.astype(weight.dtype), None


dense_product.defvjp(_forward_dense, _backward_dense)


def _count(outputs: int) -> int:
    return -(-outputs // ROWS)


def _lay_out(function: str, rows: np.ndarray, tiles: np.ndarray) -> None:
    loaded = library()
    assert loaded is not None, "tiles are only declared where the library is"
    rows = np.ascontiguousarray(rows)
    assert tiles.flags.c_contiguous, "tiles are written one after the other"
    sizes = map(ctypes.c_size_t, rows.shape)
    getattr(loaded, function)(_at(rows), *sizes, _at(tiles))


def _at(array: np.ndarray) -> Any:
    return ctypes.c_void_p(array.ctypes.data)
