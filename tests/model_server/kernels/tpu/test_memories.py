"""Memories of recurrent layers, advanced by the TPU kernel on a CPU, against plain XLA."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from model_server.kernels.states import (
    MemoryTokens,
    Remembering,
    State,
    StatePlaces,
    advance,
    places_of,
)
from model_server.kernels.tpu.attention import TpuAttention
from model_server.models.layers.delta_net import delta_rule
from model_server.models.layers.state_space import scan
from model_server.models.weights.sharding import AXES
from tests.model_server.kernels.test_states import PAGE, placed
from tests.model_server.tpu_compiler import compiled, mesh_of, needs_compiler

HEADS, HIGH, WIDE = 4, 8, 16
MESH = Mesh(np.asarray(jax.devices("cpu")[:1]).reshape(1, 1, 1), AXES)
# As a chip in what can go wrong: memory is no number before it is written, copies come late.
STRICT = TpuAttention(MESH, None, None, interpret=pltpu.InterpretParams(), memories="model")
QUICK = TpuAttention(MESH, None, None, interpret=True, memories="model")


class Decays:
    """In place of a convolution: the sum of all decays so far stands for other states."""

    taps: Any = None
    offset: Any = None

    def __call__(
        self, before: jax.Array, x: jax.Array, count: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        return before + jnp.sum(x, axis=0), x


BY_ROW = "by row"  # corrects, and each row of a memory has a decay of its own, as in Kimi Linear


def _recurrence(corrects: bool | str) -> Remembering:
    """Inputs are decays, and what the memory takes."""

    def remembered(memory: jax.Array, of: MemoryTokens) -> tuple[jax.Array, jax.Array]:
        if of.rate is None:
            return scan(memory, of.column, of.row, of.read, of.decay)
        return delta_rule(memory, of.read, of.column, of.row, of.rate, of.decay)

    def tokens(decays: Sequence[jax.Array], given: Any) -> tuple[MemoryTokens, jax.Array]:
        return given[1], decays[0]

    return Remembering([Decays()], tokens, remembered, lambda made, rest: made + rest[..., None])


def _inputs(tokens: int, corrects: bool | str) -> tuple[jax.Array, MemoryTokens]:
    draw = np.random.default_rng(3)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(draw.normal(size=(tokens, HEADS, *shape)), jnp.float32)

    column = normal(HIGH) / HIGH**0.5
    read = normal(HIGH if corrects else WIDE)
    rate = jax.nn.sigmoid(normal()) if corrects else None
    decay = -jnp.abs(normal())
    each = -jnp.abs(normal(HIGH)) if corrects == BY_ROW else decay
    return decay, MemoryTokens(column, normal(WIDE), read, each, rate)


def _held() -> State:
    draw = np.random.default_rng(4)
    memory = jnp.asarray(draw.normal(size=(9, HEADS, HIGH, WIDE)), jnp.float32)
    # The scratch page is written by padding, and never read.
    return jnp.zeros((9, HEADS), jnp.float32), memory.at[0].set(jnp.nan)


@pytest.mark.parametrize(
    "kernel",
    [pytest.param(QUICK, id="quick", marks=pytest.mark.nightly), pytest.param(STRICT, id="strict")],
)
@pytest.mark.parametrize(
    "corrects",
    [
        pytest.param(False, id="sums", marks=pytest.mark.extended),
        pytest.param(True, id="corrects"),
        pytest.param(BY_ROW, id="by row"),
    ],
)
def test_decodes_and_blocks_leave_the_states_that_xla_leaves(
    kernel: TpuAttention, corrects: bool | str
) -> None:
    """Two decodes, of which one goes to another page; a padding row; and blocks behind them."""
    places, counts = placed()
    if corrects == BY_ROW:  # in a server whose rows may try draft tokens
        places = replace(places, drafted=jnp.zeros((3,), bool))
    inputs, step = _inputs(3 + 5 * 4, corrects), _recurrence(corrects)
    blank = (jnp.zeros((HEADS,), jnp.float32), jnp.zeros((HEADS, HIGH, WIDE), jnp.float32))
    wanted, (of, memory) = advance(_held(), places, blank, inputs, jnp.asarray(counts), step)
    made, (others, written) = jax.jit(
        lambda held: advance(held, places, blank, inputs, jnp.asarray(counts), step, kernel)
    )(_held())
    live = [0, 1, *range(3, 13), *range(15, 19)]
    np.testing.assert_allclose(np.asarray(made)[live], np.asarray(wanted)[live], atol=1e-5)
    np.testing.assert_allclose(np.asarray(others)[1:], np.asarray(of)[1:], atol=1e-5)
    np.testing.assert_allclose(np.asarray(written)[1:], np.asarray(memory)[1:], atol=1e-5)


@pytest.mark.parametrize(
    "corrects",
    [
        pytest.param(False, id="sums", marks=pytest.mark.nightly),
        pytest.param(True, id="corrects"),
        pytest.param(BY_ROW, id="by row"),
    ],
)
def test_rows_of_draft_tokens_go_on_from_each_other(corrects: bool | str) -> None:
    """Two draft tokens behind one row, and one behind another."""
    tables = jnp.asarray([[1, 2], [1, 2], [1, 2], [3, 4], [3, 4]], jnp.int32)
    limits = jnp.asarray([[9], [10], [11], [14], [15]], jnp.int32)
    none = jnp.zeros((0, 2), jnp.int32), jnp.zeros((0, 4), jnp.int32)
    inputs, step = _inputs(5, corrects), _recurrence(corrects)
    blank = (jnp.zeros((HEADS,), jnp.float32), jnp.zeros((HEADS, HIGH, WIDE), jnp.float32))

    places = places_of(tables, limits, *none, PAGE, jnp.asarray([0, 5, 6, 0, 7], jnp.int32))

    def run(kernel: Any = None) -> Any:
        given = places, blank, inputs, jnp.zeros((0,), jnp.int32), step, kernel
        return jax.jit(lambda held: advance(held, *given))(_held())

    wanted, (of, memory) = run()
    made, (others, written) = run(STRICT)
    np.testing.assert_allclose(made, wanted, atol=1e-5)
    np.testing.assert_allclose(others, of, atol=1e-5)
    np.testing.assert_allclose(np.asarray(written)[1:], np.asarray(memory)[1:], atol=1e-5)


@needs_compiler
@pytest.mark.parametrize(
    "slice_name", ["v5e:2x2", pytest.param("v6e:2x2", marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize(
    ("shape", "corrects"),
    [
        ((32, 128, 128), True),  # Qwen3-Next
        *(
            pytest.param(*more, marks=pytest.mark.nightly)
            for more in (
                ((32, 128, 256), False),  # Falcon-H1 34B
                ((128, 64, 128), False),  # Granite 4.0 small
                ((64, 128, 128), False),  # MiniMax-Text-01
                ((6, 64, 128), True),  # heads that four devices do not divide
            )
        ),
    ],
    ids=str,
)
def test_a_chips_compiler_changes_memories_where_they_are(
    slice_name: str, shape: tuple[int, int, int], corrects: bool
) -> None:
    mesh, rows = mesh_of(slice_name), 32
    axis = "model" if shape[0] % mesh.size == 0 else None
    kernel = TpuAttention(mesh, None, None, memories="model")

    def held(*shape: int, dtype: Any = jnp.float32, divided: bool = True) -> Any:
        spec = PartitionSpec(None, axis) if divided else PartitionSpec()
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    heads, high, wide = shape
    pages = [held(rows, dtype=jnp.int32, divided=False) for _ in range(2)]
    flags = [held(count, dtype=jnp.bool_, divided=False) for count in (rows, 0)]
    read, rate = held(rows, heads, high if corrects else wide), held(rows, heads)
    tokens = MemoryTokens(
        held(rows, heads, high), held(rows, heads, wide), read, rate, rate if corrects else None
    )
    places, memory = StatePlaces(*pages, *flags), held(209, *shape)
    program = compiled(kernel.remember, memory, places, tokens, donate_argnums=0)
    found = program.memory_analysis()
    pool = 4 * math.prod(memory.sharding.shard_shape(memory.shape))
    assert found.alias_size_in_bytes == pool
    assert found.temp_size_in_bytes < pool / 20
