"""Products of each row with its own adapter's factors, by the native kernels."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp


def add_low_rank(
    x: jax.Array,  # f32[T, K]
    adapters: jax.Array,  # i32[T]: place of each row's adapter, from 1 on; 0: none
    down: jax.Array,  # bf16[places, C * r, K]
    ups: Sequence[jax.Array],  # C times bf16[places, r, N]
    made: Sequence[jax.Array],  # C times f32[T, N], or one of all side by side: without adapters
) -> list[jax.Array]:
    """Add to each projection; reads only the factors of adapters that are in the batch."""
    results = [jax.ShapeDtypeStruct(each.shape, jnp.float32) for each in made]
    first = 3 + len(ups)
    call = jax.ffi.ffi_call(
        "sax_cpu_low_rank",
        results,
        input_output_aliases={first + index: index for index in range(len(results))},
    )
    return list(call(x.astype(jnp.float32), adapters, down, *ups, *made))
