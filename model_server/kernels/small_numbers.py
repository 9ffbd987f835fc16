"""Quantised weights in TPU kernels: their layout, and widening one tile of them.

int4 comes as bytes, two neighbours of a row in each, and is never put back in order: the low halves
are multiplied with the even inputs and the high halves with the odd ones. So does float4, which has
bfloat16 scales.

A TPU stores [rows, columns] in whichever order takes less room once columns, or rows, are rounded
up to 128. A kernel that wants the other order makes XLA write a copy first, so it takes the stored
order. Where E matrices have a number of blocks that is no multiple of 16, a TPU would rather lay E
beside the outputs, which no kernel can take: blocks of zeros behind the others avoid that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

_LANES, _SUBLANES = 128, 8
_TILE_ROWS = 16  # of bfloat16, which is the taller of the scales' dtypes


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Packed:
    """E matrices [out, in]; unquantised ones have no scales."""

    values: jax.Array  # [E, out, in]; int4 as bytes, u8[E, out, in / 2]
    scales: jax.Array | None  # f32[E, out, blocks]; bf16: the values are float4
    offsets: jax.Array | None  # f32[E, out, blocks]
    # Blocks of a row; None: as many as there are scales, which may have zeros behind them.
    blocks: int | None = field(default=None, metadata={"static": True})

    @property
    def arrays(self) -> tuple[jax.Array, jax.Array | None, jax.Array | None]:
        return self.values, self.scales, self.offsets


@dataclass(frozen=True, slots=True)
class Form:
    """Sizes of a weight, and the memory order of its arrays."""

    outputs: int
    columns: int  # as stored
    per_column: int  # inputs per column: 2 for int4, else 1
    blocks: int  # per row; 1: one scale, or none
    held_blocks: int  # with those of zeros behind them
    chunk: int  # columns widened at a time
    scaled: bool
    offset: bool
    turned: bool  # values are stored as [columns, outputs]
    turned_scales: bool  # scales and offsets are stored as [blocks, outputs]
    float4: bool = False

    @property
    def inputs(self) -> int:
        return self.columns * self.per_column

    @property
    def block(self) -> int:
        """Columns per scale."""
        return self.columns // self.blocks

    @property
    def spread_lanes(self) -> int:
        """Lanes of the scratch for scales stored as [outputs, blocks]; 0: not needed."""
        return 0 if self.turned or self.blocks == 1 else -(-self.held_blocks // _LANES) * _LANES

    def lying(self, packed: Packed) -> Packed:
        """The arrays in the order the kernel takes; nothing moves if XLA stores them that way."""

        def turn(array: jax.Array | None, turned: bool) -> jax.Array | None:
            return jnp.swapaxes(array, 1, 2) if array is not None and turned else array

        values: Any = turn(packed.values, self.turned)
        scales, offsets = (turn(a, self.turned_scales) for a in packed.arrays[1:])
        return Packed(values, scales, offsets, packed.blocks)

    def sums(self, x: jax.Array) -> jax.Array:
        """Sum [N, in] block by block: f32[N, held blocks]."""
        made = x.astype(jnp.float32).reshape(len(x), self.blocks, -1).sum(-1)
        return jnp.pad(made, ((0, 0), (0, self.held_blocks - self.blocks)))

    def spread(self, scales: Any, into: Any) -> None:
        """Fill the scratch with a tile of scales."""
        tile = scales[...].astype(jnp.float32)
        into[:, : self.held_blocks] = tile.T if self.turned_scales else tile


def form_of(packed: Packed) -> Form | None:
    """Return the form, or None if the kernel cannot widen such blocks."""
    _, outputs, columns = packed.values.shape
    held = 1 if packed.scales is None else packed.scales.shape[2]
    blocks = packed.blocks or held
    turned = _is_turned(outputs, columns)
    block = columns // blocks
    if columns % blocks or (blocks > 1 and not _can_spread(block, turned)):
        return None
    return Form(
        outputs=outputs,
        columns=columns,
        per_column=2 if packed.values.dtype == jnp.uint8 else 1,
        blocks=blocks,
        held_blocks=held,
        chunk=_chunk(columns, block if blocks > 1 else _LANES),
        scaled=packed.scales is not None,
        offset=packed.offsets is not None,
        turned=turned,
        turned_scales=blocks == 1 or turned or _is_turned(outputs, held),
        float4=packed.scales is not None and is_float4(packed.scales),
    )


def held_blocks(blocks: int) -> int:
    """Return how many blocks of each row a TPU holds of E matrices: zeros behind the others."""
    return blocks if blocks == 1 else -(-blocks // _TILE_ROWS) * _TILE_ROWS


def is_float4(scales: Any) -> bool:
    """True if the values with these scales are float4."""
    return scales.dtype == jnp.bfloat16


def float4_numbers(bits: jax.Array) -> jax.Array:
    """f32: the float4_e2m1fn of the low four bits of each integer."""
    wide = bits.astype(jnp.int32)
    size = wide & 7
    # Twice the number: 0 to 3 as they are, then 4, 6, 8, 12.
    large = (2 | (size & 1)) << jnp.maximum((size >> 1) - 1, 0)
    twice = jnp.where(size < 4, size, large).astype(jnp.float32)
    return jnp.where((wide & 8) > 0, -0.5, 0.5) * twice


def _can_spread(block: int, turned: bool) -> bool:
    """Turned: whole sublanes. Else a scale covers whole lanes, or 128 lanes whole scales."""
    return not block % _SUBLANES if turned else not (block % _LANES and _LANES % block)


def fits(packed: Packed) -> bool:
    """True if a TPU kernel can multiply by it."""
    return form_of(packed) is not None


def _is_turned(outputs: int, columns: int) -> bool:
    """True if a TPU stores this array as [columns, outputs]."""

    def room(rows: int, lanes: int) -> int:
        return -(-rows // _SUBLANES) * _SUBLANES * -(-lanes // _LANES) * _LANES

    return room(columns, outputs) < room(outputs, columns)


def _chunk(columns: int, block: int) -> int:
    """Whole lanes, within one block or of whole blocks."""
    sizes = [size for size in (512, 256, 128) if block % size == 0 or size % block == 0]
    least = sizes[-1] if sizes else math.lcm(block, _LANES)
    return next((size for size in sizes if columns % size == 0), least)


def halves(x: jax.Array, form: Form) -> jax.Array:
    """[N, in] as [1, N, in], or for int4 as [2, N, in / 2]: even inputs, then odd ones."""
    if form.per_column == 1:
        return x[None]
    return x.reshape(len(x), -1, 2).transpose(2, 0, 1)


def can_gate(gate: Packed, up: Packed) -> bool:
    """True if `gated_grouped_matmul` can multiply by both at once."""
    form = form_of(gate)
    return form is not None and form == form_of(up)


def scale_of(scales: Any, column: Any, size: int, form: Form) -> jax.Array:
    """Scales of a chunk: f32 of its shape, or of one that broadcasts to it."""
    if not form.turned:
        return _across_lanes(scales, column, size, form.block)
    from jax.experimental import pallas as pl  # it takes 0.3 s to import

    count = max(1, size // form.block)
    tile = scales[pl.ds(column // form.block, count), :].astype(jnp.float32)
    if count == 1:
        return tile
    spread = jnp.broadcast_to(tile[:, None], (count, form.block, tile.shape[1]))
    return spread.reshape(size, tile.shape[1])


def _across_lanes(scales: Any, column: Any, size: int, block: int) -> jax.Array:
    """f32[outputs, size] from scales f32[outputs, blocks]; a TPU shuffles 128 lanes at a time."""
    from jax.experimental import pallas as pl

    pieces: list[jax.Array] = []
    for start in range(0, size, _LANES):
        first = (column + start) // block
        group = first // _LANES
        tile = scales[:, pl.ds(pl.multiple_of(group * _LANES, _LANES), _LANES)]
        lane = jax.lax.broadcasted_iota(jnp.int32, tile.shape, 1)
        wanted = first - group * _LANES + lane // block
        pieces.append(jnp.take_along_axis(tile, wanted, axis=1))
    return jnp.concatenate(pieces, axis=1)[:, :size]


def widened(stored: jax.Array, scale: jax.Array | None, form: Form, dtype: Any) -> list[jax.Array]:
    """A chunk in the product dtype: one array, or for int4 the low and the high halves."""
    if form.per_column == 1:
        parts = [stored]
    else:
        wide = stored.astype(jnp.int32)
        parts = [(wide << 28) >> 28, (wide << 24) >> 28]
        parts = [float4_numbers(part) for part in parts] if form.float4 else parts
    if scale is None:
        return [part.astype(dtype) for part in parts]
    return [(part.astype(jnp.float32) * scale).astype(dtype) for part in parts]
