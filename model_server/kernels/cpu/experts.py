"""Products of rows with the weights of their experts, by the native kernels.

The rows are sorted by expert, so that each expert's weight is read once, as it lies: the tiles of E
matrices [N, K] follow each other, as those of one of E * N rows. N is a multiple of 16.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from model_server.kernels.cpu.rows import GATES
from model_server.kernels.cpu.tiles import ROWS, ByteForm, ByteTiles, byte_rows, plain_weight

_NO_OFFSETS = np.zeros((0, 0, 0), np.float16)


class ByExpert(NamedTuple):
    """Rows in the order of their experts; those behind the last end are no expert's."""

    rows: jax.Array  # i32[R]: which of x
    ends: jax.Array  # i32[E]: of the rows of each expert

    @property
    def sizes(self) -> jax.Array:
        """i32[E]: rows of each expert."""
        return jnp.diff(self.ends, prepend=0)


class ExpertForm(NamedTuple):
    """Sizes of E weights [N, K] in tiles."""

    count: int
    outputs: int
    inputs: int
    of_bytes: ByteForm | None = None  # of all E * N rows, of a quantised weight

    @property
    def fits(self) -> bool:
        """True if the native products take it: no tile has rows of two experts."""
        return self.outputs % ROWS == 0 and (self.of_bytes is None or self.of_bytes.fits)


Tiles = jax.Array | ByteTiles


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def expert_product(form: ExpertForm, x: jax.Array, tiles: Tiles, by: ByExpert) -> jax.Array:
    """f32[R, N]: each row of `by` times its expert's transposed weight; zeros for no expert's.

    x: [T, K]. tiles: as `tiles.plain_tiles` or `tiles.byte_tiles` of all experts' rows.
    """
    made = jax.ShapeDtypeStruct((by.rows.shape[0], form.outputs), jnp.float32)
    call = jax.ffi.ffi_call(f"sax_cpu_{_kind(form)}", made)
    return call(x.astype(jnp.float32), *by, *_parts(tiles), **_numbers(form))


def _forward(form: ExpertForm, x: jax.Array, tiles: Tiles, by: ByExpert) -> Any:
    return expert_product(form, x, tiles, by), (x, tiles, by)


def _backward(form: ExpertForm, kept: Any, change: jax.Array) -> Any:
    x, tiles, by = kept
    weight = weights_of(form, tiles).astype(jnp.float32)  # [E, N, K]

    def plainly(x: jax.Array, weight: jax.Array) -> jax.Array:
        seen = x.astype(jnp.float32)[by.rows]
        return jax.lax.ragged_dot(seen, weight.swapaxes(1, 2), by.sizes)

    _, pull = jax.vjp(plainly, x, weight)
    of_x, of_weight = pull(change)
    if isinstance(tiles, ByteTiles):  # nobody differentiates by small whole numbers
        return of_x, None, None
    shape = (form.count * form.outputs, form.inputs)
    pairs = jnp.pad(of_weight.reshape(shape), ((0, 0), (0, form.inputs % 2)))
    in_tiles = pairs.reshape(-1, ROWS, pairs.shape[1] // 2, 2).transpose(0, 2, 1, 3)
    return of_x, in_tiles.astype(tiles.dtype), None


expert_product.defvjp(_forward, _backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 5))
def gated_expert_product(
    form: ExpertForm, x: jax.Array, gates: Tiles, ups: Tiles, by: ByExpert, gate: str
) -> jax.Array:
    """f32[R, N]: gate(x W_gate) * x W_up, in one pass over the weights; gate: a name in GATES.

    Both weights have the form.
    """
    made = jax.ShapeDtypeStruct((by.rows.shape[0], form.outputs), jnp.float32)
    call = jax.ffi.ffi_call(f"sax_cpu_{_kind(form)}_gated", made)
    given = (*by, *_parts(gates), *_parts(ups))
    return call(x.astype(jnp.float32), *given, gate=np.int32(GATES[gate]), **_numbers(form))


_FUNCTIONS = {
    "silu": jax.nn.silu,
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
}


def _forward_gated(
    form: ExpertForm, x: jax.Array, gates: Tiles, ups: Tiles, by: ByExpert, gate: str
) -> Any:
    return gated_expert_product(form, x, gates, ups, by, gate), (x, gates, ups, by)


def _backward_gated(form: ExpertForm, gate: str, kept: Any, change: jax.Array) -> Any:
    x, gates, ups, by = kept

    def apart(x: jax.Array, gates: Tiles, ups: Tiles) -> jax.Array:
        opening = expert_product(form, x, gates, by)
        return _FUNCTIONS[gate](opening) * expert_product(form, x, ups, by)

    if isinstance(gates, ByteTiles):
        _, of_rows = jax.vjp(lambda x: apart(x, gates, ups), x)
        return *of_rows(change), None, None, None
    _, pull = jax.vjp(apart, x, gates, ups)
    return *pull(change), None


gated_expert_product.defvjp(_forward_gated, _backward_gated)


def weights_of(form: ExpertForm, tiles: Tiles) -> jax.Array:
    """[E, N, K]: the weights as they were before, dequantised."""
    every = form.count * form.outputs
    if isinstance(tiles, ByteTiles):
        assert form.of_bytes is not None
        plain = byte_rows(tiles, form.of_bytes, jnp.arange(every))
    else:
        plain = plain_weight(tiles, (every, form.inputs))
    return plain.reshape(form.count, form.outputs, form.inputs)


def _kind(form: ExpertForm) -> str:
    return "experts" if form.of_bytes is None else "experts_in_bytes"


def _numbers(form: ExpertForm) -> dict[str, np.int32]:
    return {} if form.of_bytes is None else form.of_bytes.attributes


def _parts(tiles: Tiles) -> tuple[Any, ...]:
    if not isinstance(tiles, ByteTiles):
        return (tiles,)
    offsets = _NO_OFFSETS if tiles.offsets is None else tiles.offsets
    return (tiles.values, tiles.scales, offsets, tiles.units)
