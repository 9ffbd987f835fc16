"""Products with adapters' factors, each row with its own adapter's, against numpy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from model_server.kernels.cpu.low_rank import add_low_rank
from tests.each_case import Failures
from tests.model_server.kernels.cpu.instruction_sets import InstructionSets, instruction_sets

__all__ = ["instruction_sets"]

product = jax.jit(add_low_rank)


def test_each_row_gets_its_own_adapters_product(instruction_sets: InstructionSets) -> None:
    failures = Failures()
    # adapters, their rank, inputs, outputs
    cases = [(16, 8, 576, (576, 192, 192)), (3, 5, 37, (17,)), (1, 16, 64, (8, 40))]
    for instructions in instruction_sets():
        for case in cases:
            with failures.of(*case, instructions):
                compare(*case)
    assert not failures, str(failures)


def compare(places: int, rank: int, inputs: int, outputs: tuple[int, ...]) -> None:
    rng = np.random.default_rng(places)
    rows = 9

    def factors(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(ml_dtypes.bfloat16)

    x = rng.normal(size=(rows, inputs)).astype(np.float32)
    chosen = rng.integers(0, places + 1, rows).astype(np.int32)
    chosen[0] = 0  # none
    down = factors(places, len(outputs) * rank, inputs)
    ups = [factors(places, rank, size) for size in outputs]
    made = [rng.normal(size=(rows, size)).astype(np.float32) for size in outputs]
    got = product(x, chosen, down, ups, made)
    for index, each in enumerate(got):
        wanted = made[index].astype(np.float64)
        for row in np.nonzero(chosen)[0]:
            own = down[chosen[row] - 1].reshape(len(outputs), rank, inputs)[index]
            inner = own.astype(np.float64) @ x[row]
            wanted[row] += inner @ ups[index][chosen[row] - 1].astype(np.float64)
        np.testing.assert_allclose(each, wanted, rtol=0, atol=2e-4 * np.sqrt(inputs))
        np.testing.assert_array_equal(each[0], made[index][0])
    beside = product(x, chosen, down, ups, [np.concatenate(made, axis=1)])
    np.testing.assert_array_equal(beside[0], np.concatenate(got, axis=1))


def test_another_adapters_numbers_reach_no_row(instruction_sets: InstructionSets) -> None:
    down = np.full((2, 4, 32), np.inf, ml_dtypes.bfloat16)
    down[1] = 1
    ups = [np.ones((2, 4, 16), ml_dtypes.bfloat16)]
    made = [np.zeros((2, 16), np.float32)]
    for instructions in instruction_sets():
        got = add_low_rank(
            jnp.ones((2, 32)), jnp.asarray([2, 0], jnp.int32), jnp.asarray(down), ups, made
        )
        np.testing.assert_array_equal(got[0], [[128.0] * 16, [0.0] * 16], err_msg=instructions)
