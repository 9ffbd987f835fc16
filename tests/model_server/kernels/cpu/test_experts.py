"""Products of rows with their experts' weights, against those with each weight alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from model_server.checkpoints.packed import FLOAT4, Packing
from model_server.kernels.cpu import native
from model_server.kernels.cpu.experts import (
    ByExpert,
    ExpertForm,
    expert_product,
    gated_expert_product,
    weights_of,
)
from model_server.kernels.cpu.tiles import (
    ByteTiles,
    byte_product,
    byte_tiles,
    plain_product,
    plain_tiles,
)
from tests.each_case import Failures
from tests.model_server.kernels.cpu.instruction_sets import InstructionSets, product_sets
from tests.model_server.kernels.cpu.packed_weights import blocks_of

__all__ = ["product_sets"]

COUNT, OUTPUTS, INPUTS = 3, 48, 64
TOKENS = 5
# The rows of each expert: all, none, one, more than are multiplied at once; and some of nobody.
GROUPS: list[list[list[int]]] = [
    [[0, 2, 4], [1], [0, 3]],
    [[], [4], []],
    [[], [], []],
    [[0, 1, 2, 3, 4] * 8, [], [3]],
]
BLOCK = 32
PACKINGS = {
    "plain": None,
    "int8": Packing("int8", None, offset=False),
    "int4": Packing("int4", BLOCK, offset=False),
    "int4 with offsets": Packing("int4", BLOCK, offset=True),
    "float4": Packing(FLOAT4, BLOCK, offset=False),
}


@pytest.fixture(autouse=True)
def needs_library() -> None:
    if not native.available():
        pytest.skip(native.described())


def by_expert(groups: list[list[int]], nobody: int = 2) -> ByExpert:
    rows = [row for group in groups for row in group] + [0] * nobody
    ends = np.cumsum([len(group) for group in groups])
    return ByExpert(jnp.asarray(rows, jnp.int32), jnp.asarray(ends, jnp.int32))


class Weights:
    """E weights as the grouped product takes them, and each alone."""

    def __init__(self, packing: Packing | None, seed: int = 0) -> None:
        numbers = np.random.default_rng(seed).normal(size=(COUNT * OUTPUTS, INPUTS))
        if packing is None:
            plain = numbers.astype(ml_dtypes.bfloat16)
            self.form = ExpertForm(COUNT, OUTPUTS, INPUTS)
            self.tiles: Any = jnp.asarray(plain_tiles(plain))
            return
        of_all, blocks = blocks_of(numbers.astype(np.float32), packing)
        self.form = ExpertForm(COUNT, OUTPUTS, INPUTS, of_all)
        self.tiles = jax.tree.map(jnp.asarray, byte_tiles(of_all, blocks))

    def alone(self, expert: int, x: np.ndarray) -> np.ndarray:
        tile = slice(expert * OUTPUTS // 16, (expert + 1) * OUTPUTS // 16)
        of_all, shape = self.form.of_bytes, (OUTPUTS, INPUTS)
        if of_all is None:
            return np.asarray(plain_product(shape, jnp.asarray(x), self.tiles[tile]))
        mine = ByteTiles(*(part if part is None else part[tile] for part in self.tiles))
        return np.asarray(byte_product(of_all._replace(shape=shape), jnp.asarray(x), mine))


def expected(weights: Weights, x: np.ndarray, groups: list[list[int]]) -> np.ndarray:
    """Each row by itself: its bits depend on no other."""
    made = [
        weights.alone(expert, x[row : row + 1])[0]
        for expert, rows in enumerate(groups)
        for row in rows
    ]
    return np.stack([*made, *[np.zeros(OUTPUTS, np.float32)] * 2])


def seen(tokens: int = TOKENS) -> np.ndarray:
    return np.random.default_rng(tokens).normal(size=(tokens, INPUTS)).astype(np.float32)


def test_a_row_has_the_bits_of_its_expert_alone(product_sets: InstructionSets) -> None:
    failures = Failures()
    for name, packing in PACKINGS.items():
        weights = Weights(packing)
        for groups in GROUPS:
            for kernels in product_sets():
                with failures.of(name, groups, kernels):
                    made = expert_product(weights.form, seen(), weights.tiles, by_expert(groups))
                    np.testing.assert_array_equal(made, expected(weights, seen(), groups))
    failures.end()


def test_gates_and_ups_in_one_pass_are_those_apart() -> None:
    failures = Failures()
    apart = {
        "silu": jax.nn.silu,
        "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
        "relu": jax.nn.relu,
    }
    for name, packing in PACKINGS.items():
        gates, ups = Weights(packing), Weights(packing, seed=1)
        for gate, function in apart.items():
            with failures.of(name, gate):
                by = by_expert(GROUPS[0])
                given = gates.form, seen(), gates.tiles, ups.tiles, by, gate
                opening, going_up = (
                    expert_product(each.form, seen(), each.tiles, by) for each in (gates, ups)
                )
                np.testing.assert_allclose(
                    gated_expert_product(*given), function(opening) * going_up, 2e-3, 2e-3
                )
    failures.end()


def test_an_experts_weight_is_read_back_and_differentiated() -> None:
    weights, by = Weights(None), by_expert(GROUPS[0])
    plain = weights_of(weights.form, weights.tiles).astype(jnp.float32)

    def plainly(x: jax.Array) -> jax.Array:
        return jax.lax.ragged_dot(x[by.rows], plain.swapaxes(1, 2), by.sizes)

    x = jnp.asarray(seen()).astype(jnp.bfloat16).astype(jnp.float32)
    weigh = np.random.default_rng(3).normal(size=(len(by.rows), OUTPUTS)).astype(np.float32)

    def natively(x: jax.Array) -> Any:
        return expert_product(weights.form, x, weights.tiles, by)

    def gradient(made: Callable[[jax.Array], Any]) -> jax.Array:
        return jax.grad(lambda x: jnp.sum(made(x) * weigh))(x)

    np.testing.assert_allclose(gradient(natively), gradient(plainly), 1e-4, 1e-4)


def test_what_does_not_fit_is_an_error_and_no_crash() -> None:
    failures = Failures()
    weights, by = Weights(None), by_expert(GROUPS[0])
    form, x = weights.form, seen()
    cases = {
        "a row that is not there": (form, x, weights.tiles, by._replace(rows=by.rows + TOKENS)),
        "ends that go back": (form, x, weights.tiles, by._replace(ends=by.ends[::-1])),
        "an end behind the rows": (form, x, weights.tiles, by._replace(ends=by.ends + 99)),
        "experts that are not there": (form, x, weights.tiles[:-1], by),
        "other inputs": (form, x[:, :-4], weights.tiles, by),
    }
    for name, given in cases.items():
        with failures.of(name), pytest.raises(Exception, match="do not fit"):
            jax.block_until_ready(expert_product(*given))
    failures.end()
