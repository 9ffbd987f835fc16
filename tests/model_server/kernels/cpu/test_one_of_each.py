"""One native product, of small numbers and of large, and one native step of attention: the least
that says that the kernels of this machine compute. The files beside this one have every case.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from model_server.checkpoints.packed import Packing
from model_server.kernels.cpu.attention import CpuAttention
from model_server.kernels.cpu.tiles import (
    ByteForm,
    byte_product,
    byte_tiles,
    plain_product,
    plain_tiles,
)
from model_server.kernels.pages import key_major_shapes, write
from model_server.models.weights.quantization import quantize
from tests.model_server.kernels.cpu.instruction_sets import InstructionSets, instruction_sets
from tests.model_server.kernels.paged_cases import (
    Case,
    attend_compiled,
    batch_of,
    filled,
    new_tokens,
    reference_of,
)

__all__ = ["instruction_sets"]


def test_a_product_is_that_of_numpy(instruction_sets: InstructionSets) -> None:
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(50, 192)).astype(ml_dtypes.bfloat16)
    x = rng.normal(size=(5, 192)).astype(np.float32)
    blocks = quantize(weight.astype(np.float32), Packing("int8", None, False))
    form = ByteForm(weight.shape, 192, 8, False)
    plain = jnp.asarray(plain_tiles(weight))
    quantised = jax.tree.map(jnp.asarray, byte_tiles(form, blocks))
    exact = x.astype(ml_dtypes.bfloat16).astype(np.float64) @ weight.astype(np.float64).T
    rounded = x.astype(np.float64) @ blocks.dequantized().astype(np.float64).T
    for instructions in instruction_sets():
        made = plain_product((50, 192), jnp.asarray(x), plain)
        np.testing.assert_allclose(made, exact, rtol=0, atol=1e-3, err_msg=instructions)
        made = byte_product(form, jnp.asarray(x), quantised)
        lost = np.square(made - rounded).mean() / np.square(rounded).mean()
        assert np.sqrt(lost) < 1e-4, instructions


def test_a_step_of_attention_is_that_of_the_reference(instruction_sets: InstructionSets) -> None:
    case = Case(2, 2, 8, 8, 2, 16, 16, 16, 5, softcap=50.0, window=4)
    batch = batch_of(case, CpuAttention())
    wanted, wrote = reference_of(case, batch)
    for instructions in instruction_sets():
        pages = filled(case, key_major_shapes, write)
        got, pages = attend_compiled(case, batch, pages, *new_tokens(case))
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5, err_msg=instructions)
        for own, its in zip(jax.tree.leaves(pages), jax.tree.leaves(wrote), strict=True):
            np.testing.assert_array_equal(own[1:], its[1:], err_msg=instructions)
