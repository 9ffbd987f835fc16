"""Adapters of projections: each row's own factors and gains, and biases that gains leave alone."""

from __future__ import annotations

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_server.kernels.cpu import native
from model_server.models.layers.layers import Branches, Linear
from model_server.models.layers.low_rank import LowRank, choose_adapters
from model_server.models.weights.low_rank import AdapterRoom
from model_server.models.weights.source import Tensor
from model_server.models.weights.weight import WeightForm
from tests.each_case import Failures

PLACES, RANK, INPUTS, OUTPUTS = 3, 2, 32, (32, 64)
ROWS = [0, 2, 1, 0, 3]  # place 3 has factors and no gains


def fill(module: nnx.Module) -> None:
    """Give every parameter random numbers; the third place no gains."""
    rng = np.random.default_rng(5)
    for _, node in nnx.iter_graph(module):
        if isinstance(node, nnx.Param):
            made = jax.tree.map(
                lambda held: jnp.asarray(rng.normal(size=held.shape), held.dtype), node.get_value()
            )
            node.set_value(made)
    for _, node in nnx.iter_graph(module):
        if isinstance(node, LowRank):
            for gain in node.gains:
                gain.set_value(gain[...].at[2].set(0.0))


def wanted(low: LowRank, index: int, plain: np.ndarray, x: np.ndarray) -> np.ndarray:
    made = plain.copy()
    for row, place in enumerate(ROWS):
        if place:
            down = np.asarray(low.down[...], np.float32)[place - 1].reshape(-1, RANK, INPUTS)[index]
            up = np.asarray(low.ups[index][...], np.float32)[place - 1]
            gain = 1 + np.asarray(low.gains[index][...])[place - 1]
            made[row] = made[row] * gain + x[row] @ down.T @ up
    return made


def compare(form: WeightForm, *, apart: bool) -> None:
    sources = [Tensor(f"part{index}.weight") for index in range(2)]
    names = [Tensor(f"part{index}.bias") for index in range(2)]
    axes = [(None, None)] * 2
    if apart:
        module = Linear(OUTPUTS[0], INPUTS, (None, None), sources[0], form=form, bias=names[0])
    else:
        module = Branches(OUTPUTS, INPUTS, axes, sources, form=form, biases=names)
    fill(module)
    linear = module if isinstance(module, Linear) else module.linears[0]
    low = module.low_rank
    assert low is not None
    x = np.random.default_rng(7).normal(size=(len(ROWS), INPUTS)).astype(np.float32)
    x = np.asarray(jnp.asarray(x, form.dtype), np.float32)
    bare = np.asarray(linear.product(jnp.asarray(x)))
    bias = np.asarray(linear.bias[...])
    choose_adapters(module, jnp.asarray(ROWS, jnp.int32))
    got = module(jnp.asarray(x))
    made = [got] if apart else got
    bound = 1e-4 if form.dtype == jnp.float32 else 0.3
    first = 0
    for index, each in enumerate(made):
        part = slice(first, first + each.shape[1])
        expected = wanted(low, index, bare[:, part], x) + bias[part]
        np.testing.assert_allclose(each, expected, rtol=0, atol=bound)
        np.testing.assert_array_equal(each[0], bare[0, part] + bias[part])  # no adapter
        first = part.stop


def test_a_row_has_its_adapters_product_and_gains_and_its_bias_once() -> None:
    failures = Failures()
    room = AdapterRoom(PLACES, RANK)
    built = [True, False] if native.library() is not None else [False]
    for apart, tiles in product([True, False], built):
        dtype = jnp.bfloat16 if tiles else jnp.float32
        with failures.of(apart, tiles):
            compare(WeightForm(dtype=dtype, adapters=room, tiles=tiles), apart=apart)
    assert not failures, str(failures)
