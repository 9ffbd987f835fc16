"""Weights on a CPU in tiles, as the native products read them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from model_server.checkpoints.packed import FLOAT4, PackedBlocks, Packing
from model_server.kernels.cpu import tiles
from model_server.kernels.cpu.experts import ExpertForm
from model_server.kernels.cpu.tiles import ByteForm, ByteTiles


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Tiled:
    """A plain weight [out, in]."""

    # bf16[out / 16, in / 2, 16, 2], both rounded up, or f32[out / 16, in, 16, 1]
    values: jax.Array
    shape: tuple[int, int] = field(metadata={"static": True})

    @property
    def dtype(self) -> jnp.dtype:
        return self.values.dtype

    @property
    def byte_form(self) -> None:
        """None: it is not quantised."""

    def rows(self, index: jax.Array) -> jax.Array:
        """f32[T, in]: these rows."""
        return tiles.plain_rows(self.values, index, self.shape[1]).astype(jnp.float32)

    def project(self, x: jax.Array, live: jax.Array | None = None) -> jax.Array:
        """[T, in] times the transposed matrix: f32[T, out]; live: as of `tiles.plain_product`."""
        return tiles.plain_product(self.shape, x, self.values, live)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class TiledQuantized:
    """A quantised weight [out, in]."""

    values: ByteTiles
    form: ByteForm = field(metadata={"static": True})
    dtype: Any = field(metadata={"static": True})  # after dequantising

    @property
    def shape(self) -> tuple[int, int]:
        return self.form.shape

    @property
    def byte_form(self) -> ByteForm:
        return self.form

    def taking_one_byte(self) -> TiledQuantized:
        """Return it with rows of one byte a number."""
        return replace(self, form=self.form._replace(one_byte=True))

    def rows(self, index: jax.Array) -> jax.Array:
        """f32[T, in]: these rows, dequantised."""
        return tiles.byte_rows(self.values, self.form, index)

    def project(self, x: jax.Array, live: jax.Array | None = None) -> jax.Array:
        """[T, in] times the transposed matrix: f32[T, out]; live: as of `tiles.plain_product`."""
        return tiles.byte_product(self.form, x, self.values, live)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class TiledExperts:
    """E weights [out, in], plain or quantised."""

    values: jax.Array | ByteTiles  # of all E * out rows
    form: ExpertForm = field(metadata={"static": True})
    dtype: Any = field(metadata={"static": True})  # after dequantising

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.form.count, self.form.outputs, self.form.inputs

    @property
    def byte_form(self) -> ByteForm | None:
        return self.form.of_bytes

    def taking_one_byte(self) -> TiledExperts:
        """Return them with rows of one byte a number; they are quantised."""
        assert self.form.of_bytes is not None
        form = self.form._replace(of_bytes=self.form.of_bytes._replace(one_byte=True))
        return replace(self, form=form)


InTiles = Tiled | TiledQuantized | TiledExperts


def byte_form_of(value: Any) -> ByteForm | None:
    """Return the form of a quantised weight in tiles; None: it is another."""
    return value.byte_form if isinstance(value, InTiles) else None


def tiled_placeholder(
    shape: tuple[int, ...],
    packing: Packing | None,
    dtype: Any,
    zeros: Callable[..., Any] = jnp.zeros,
) -> InTiles | None:
    """Zeros in the shapes of a weight in tiles; None: the native products do not take it.

    zeros: makes each array.
    """
    # Scales in tiles have eleven bits, and those of experts are of bfloat16.
    finely = dtype == jnp.float32 and packing is None and len(shape) == 2
    if dtype != jnp.bfloat16 and not finely:
        return None
    if packing is not None and packing.kind not in _BITS:
        return None
    *of_experts, outputs, inputs = shape
    rows = math.prod((*of_experts, outputs)), inputs
    form = None if packing is None else form_of(rows, packing)
    if len(shape) == 3:
        experts = ExpertForm(shape[0], outputs, inputs, form)
        return (
            TiledExperts(_zeros(rows, form, dtype, zeros), experts, dtype) if experts.fits else None
        )
    if len(shape) != 2 or not (form is None or form.fits):
        return None
    made = _zeros(rows, form, dtype, zeros)
    return Tiled(made, rows) if form is None else TiledQuantized(made, form, dtype)


def _zeros(
    rows: tuple[int, int], form: ByteForm | None, dtype: Any, zeros: Callable[..., Any]
) -> Any:
    return zeros(tiles.plain_shape(rows, dtype), dtype) if form is None else form.tiles(zeros)


def lay_out(
    packing: Packing | None, plain: dict[str, np.ndarray], made: dict[str, np.ndarray]
) -> None:
    """Fill the tiles `made` of a weight's rows; both by the names of leaves.

    Rows [E, out, in] of whole experts lie one below the other.
    """
    plain = {part: array.reshape(-1, array.shape[-1]) for part, array in plain.items()}
    if packing is None:
        tiles.lay_out_plain(plain[""], made[""])
        return
    blocks = PackedBlocks(plain["values"], plain["scales"], plain.get("offsets"))
    outputs, inputs = blocks.values.shape
    into = ByteTiles(made["values"], made["scales"], made.get("offsets"), made["units"])
    tiles.lay_out_bytes(form_of((outputs, inputs), packing), blocks, into)


_BITS = {"int8": 8, "int4": 4, FLOAT4: 4}


def form_of(shape: tuple[int, int], packing: Packing) -> ByteForm:
    block = packing.block or shape[1]
    bits, is_float4 = _BITS.get(packing.kind, 8), packing.kind == FLOAT4
    return ByteForm(shape, block, bits, packing.offset, is_float4)
