"""How libtpu's compiler divides the sums of products: what docs/explanation/exactness.md says of
TPUs."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from tests.model_server.tpu_compiler import compiled, needs_compiler, one_device

pytestmark = [pytest.mark.timeout(900), pytest.mark.nightly, needs_compiler]

_WINDOWS = re.compile(r'"iteration_bounds":\["(\d+)","(\d+)","(\d+)"\]')


def windows(rows: int, inputs: int, outputs: int) -> int:
    """Windows that each sum over the inputs is divided into, on v5e."""
    whole = NamedSharding(one_device("v5e"), PartitionSpec())
    x = jax.ShapeDtypeStruct((rows, inputs), jnp.float32, sharding=whole)
    weight = jax.ShapeDtypeStruct((outputs, inputs), jnp.bfloat16, sharding=whole)

    def product(x: jax.Array, weight: jax.Array) -> jax.Array:
        along = (((1,), (1,)), ((), ()))
        small = x.astype(weight.dtype)  # as `layers.project`
        return jax.lax.dot_general(small, weight, along, preferred_element_type=jnp.float32)

    found = _WINDOWS.findall(compiled(product, x, weight).as_text())
    assert len(found) == 1, "one product"
    return int(found[0][2])


def test_decodes_share_the_windows_of_their_sums_and_a_long_chunk_has_others() -> None:
    assert [windows(rows, 8192, 2048) for rows in (8, 16, 32, 64)] == [5] * 4
    assert windows(256, 8192, 2048) == 8
    assert {windows(rows, 2048, 8192) for rows in (8, 64, 256)} == {1}
