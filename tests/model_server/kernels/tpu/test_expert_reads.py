"""Which experts' weights the grouped products bring to the chip, by their own grids."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_server.kernels.small_numbers import Packed
from model_server.kernels.tpu.grouped_matmul import gated_grouped_matmul, grouped_matmul, visits_of
from tests.model_server.kernels.tpu.pallas_calls import blocks_brought, kernel_call

OUTPUTS, INPUTS = 1024, 256


def _gated(opening: jax.Array, up: jax.Array) -> jax.Array:
    return jax.nn.silu(opening) * up


def experts_brought(sizes: list[int], rows: int, weights: int) -> list[Counter[int]]:
    """Return how many outputs of each expert are brought, for each weight of a call.

    sizes: rows of each expert, of all `rows`. weights: 1, or 2 for gate and up.
    """
    x = jnp.zeros((rows, INPUTS), jnp.bfloat16)
    packed = Packed(jnp.zeros((len(sizes), OUTPUTS, INPUTS), jnp.bfloat16), None, None)
    counts = jnp.asarray(sizes, jnp.int32)

    def product(x: jax.Array, packed: Packed, counts: jax.Array) -> jax.Array:
        if weights == 1:
            return grouped_matmul(x, packed, counts, interpret=True)
        return gated_grouped_matmul(x, packed, packed, counts, _gated, x.dtype, interpret=True)

    of_x, *of_weights, _ = (
        kernel_call(product, x, packed, counts).params["grid_mapping"].block_mappings
    )
    high = of_x.transformed_block_aval.shape[-2]
    visits = visits_of(counts, of_x.array_aval.shape[1] // high, high)
    assert len(of_weights) == weights
    return [_outputs_by_expert(each, visits) for each in of_weights]


def _outputs_by_expert(mapping: Any, visits: Any) -> Counter[int]:
    outputs = mapping.transformed_block_aval.shape[-2]
    grid = (OUTPUTS // outputs, int(visits.count))
    brought = blocks_brought(mapping, grid, visits)
    assert len(brought) == len(set(brought)), "no block is brought twice"
    found: Counter[int] = Counter()
    for expert, _, _ in brought:
        found[expert] += outputs
    return found


def routed(tokens: int, experts: int, chosen: int, seed: int) -> list[int]:
    """Return the rows of each expert, where every token chooses so many at random."""
    rng = np.random.default_rng(seed)
    routes = [rng.permutation(experts)[:chosen] for _ in range(tokens)]
    return np.bincount(np.concatenate(routes), minlength=experts).tolist()


@pytest.mark.parametrize(
    ("tokens", "experts", "chosen", "weights"),
    [
        (1, 128, 8, 2),
        (8, 128, 8, 1),
        *(
            pytest.param(tokens, *of, weights, marks=pytest.mark.nightly)
            for tokens, of, weights in itertools.product([1, 8], [(8, 2), (128, 8)], [1, 2])
            if (tokens, of, weights) not in ((1, (128, 8), 2), (8, (128, 8), 1))
        ),
    ],
)
def test_a_decode_brings_the_weights_of_chosen_experts_once_and_no_others(
    tokens: int, experts: int, chosen: int, weights: int
) -> None:
    sizes = routed(tokens, experts, chosen, seed=tokens)
    wanted = {expert: OUTPUTS for expert, size in enumerate(sizes) if size}
    assert len(wanted) < experts
    for brought in experts_brought(sizes, tokens * chosen, weights):
        assert brought == wanted


@settings(max_examples=10, deadline=None)
@given(st.lists(st.sampled_from([0, 0, 1, 5, 40]), min_size=4, max_size=4).filter(any))
def test_a_step_of_any_size_brings_each_chosen_expert_once(sizes: list[int]) -> None:
    (brought,) = experts_brought(sizes, sum(sizes), 1)
    assert brought == {expert: OUTPUTS for expert, size in enumerate(sizes) if size}


def test_a_device_none_of_whose_experts_is_chosen_brings_one() -> None:
    (brought,) = experts_brought([0, 0, 0], 4, 1)
    assert sum(brought.values()) == OUTPUTS
