"""int4 arrays cross into programs compiled ahead of time without losing a number."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from model_server.models.weights.quantized import as_bytes, unpacked
from model_server.models.weights.sharding import own_device

NUMBERS = np.random.default_rng(0).integers(-8, 8, (3, 4, 6))


@pytest.mark.parametrize("shape", [(3, 4, 6), (12, 6), (72,)])
def test_bytes_hold_the_same_numbers(shape: tuple[int, ...]) -> None:
    numbers = NUMBERS.reshape(shape)
    placed = jax.device_put(
        numbers.astype(ml_dtypes.int4), own_device().sharding(shape, (None,) * len(shape))
    )
    carried = as_bytes(placed)
    assert carried.dtype == jnp.uint8
    assert carried.size == numbers.size // 2

    def widened(array: jax.Array) -> jax.Array:
        return unpacked(array).astype(jnp.int8)

    program = jax.jit(widened).lower(carried).compile()
    np.testing.assert_array_equal(program(carried), numbers)


def test_other_arrays_stay_as_they_are() -> None:
    plain = jnp.ones((2, 3), jnp.bfloat16)
    assert as_bytes(plain) is plain
    assert unpacked(plain) is plain
