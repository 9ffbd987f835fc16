"""States of recurrent layers by the native kernels: in pages, in place, token by token.

A token's bits depend on those before it alone: not on where a chunk of a prompt ends, nor on
whether it is computed as part of a chunk or as a decode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    from model_server.kernels.states import MemoryTokens, StatePlaces

_NONE = np.zeros(0, np.float32)


def convolve(
    held: jax.Array,  # f32[P + 1, D, K - 1]: the last inputs
    places: StatePlaces,
    counts: jax.Array,  # i32[N]
    x: jax.Array,  # f32[T, D]
    taps: jax.Array,  # f32[D, K]
    bias: jax.Array | None,  # f32[D]
) -> tuple[jax.Array, jax.Array]:
    """Return f32[T, D], zeros for padding, and `held` with the inputs before the next tokens."""
    call = jax.ffi.ffi_call(
        "sax_cpu_convolve",
        (_like(x, *x.shape), _like(held, *held.shape)),
        input_output_aliases={8: 1},
    )
    made, left = call(*_where(places, counts), x, taps, _NONE if bias is None else bias, held)
    return made, left


def take_in(
    memory: jax.Array,  # f32[P + 1, H, A, B]
    places: StatePlaces,
    counts: jax.Array,  # i32[N]
    tokens: MemoryTokens,  # [T, H, ...]
) -> tuple[jax.Array, jax.Array]:
    """Return the outputs f32[T, H, A or B], zeros for padding, and the memories after them."""
    column, row, read, decay, rate = tokens
    wide = column if rate is None else row
    call = jax.ffi.ffi_call(
        "sax_cpu_remember",
        (_like(wide, *wide.shape), _like(memory, *memory.shape)),
        input_output_aliases={10: 1},
    )
    rates = _NONE if rate is None else rate
    made, left = call(*_where(places, counts), column, row, read, decay, rates, memory)
    return made, left


def _where(places: StatePlaces, counts: jax.Array) -> tuple[jax.Array, ...]:
    decodes = places.reads.shape[0] - counts.shape[0]
    drafted = jnp.zeros(decodes, bool) if places.drafted is None else places.drafted
    goes_on = jnp.concatenate([drafted, places.chained])
    whole = (each.astype(jnp.int32) for each in (places.fresh, goes_on))
    return (places.reads, places.writes, *whole, counts.astype(jnp.int32))


def _like(array: jax.Array, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, array.dtype)
