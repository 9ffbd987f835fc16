"""The TPU kernels for chosen tokens, compiled by the real compiler for chips that are not here."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from model_server.kernels.chosen import Choosing, Chosen, attend_to_chosen
from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import CacheShape
from model_server.kernels.tpu.attention import TpuAttention
from tests.each_case import Failures
from tests.model_server.compiled_program import made_as_large_as
from tests.model_server.tpu_compiler import compiled, mesh_of, needs_compiler, one_device

pytestmark = [needs_compiler]

PAGES, PAGE, CONTEXT, MIXED, INDEX, MOST = 4095, 64, 4096, 576, 128, 2048
DECODES, BLOCKS, BLOCK = 32, 4, 128


def check(
    mesh: Mesh,
    *,
    heads: int,
    indexers: int,
    dtype: str = "bfloat16",
    axis: str | None = None,
    index: int = INDEX,
    blocks: int = BLOCKS,
) -> None:
    """It compiles; the pages stay where they are, and nothing as large is made beside them.

    index: numbers of the key for choosing; 0: the choice is that of a layer before.
    """
    kernel = TpuAttention(mesh, axis, None)

    def held(shape: tuple[int, ...], dtype: Any, *spec: str | None) -> Any:
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    def numbers(*shape: int) -> Any:
        return held(shape, jnp.int32)

    tokens, table = DECODES + blocks * BLOCK, CONTEXT // PAGE
    places = (numbers(tokens), numbers(tokens), numbers(DECODES, table), numbers(DECODES, 1))
    batch = PagedBatch(*places, numbers(blocks, table), numbers(blocks, BLOCK), kernel=kernel)
    cache = CacheShape(layers=1, kv_heads=1, key_dim=MIXED + index, value_dim=0, chosen=True)
    layer = jax.tree.map(
        lambda array: held(array.shape, array.dtype),
        kernel.shapes(cache, PAGES, PAGE, jnp.dtype(dtype)),
    )
    q = held((tokens, heads, MIXED), jnp.float32, None, axis)
    k = held((tokens, 1, MIXED + index), jnp.float32)
    by: Any = Choosing(
        held((tokens, indexers, index), jnp.float32), held((tokens, indexers), jnp.float32)
    )
    if not index:
        rows = held((blocks, BLOCK, CONTEXT), jnp.bool_) if blocks else None
        by = Chosen(held((DECODES, 1, CONTEXT), jnp.bool_), rows)

    def step(layer: Any, batch: Any, q: Any, k: Any, by: Any) -> Any:
        return attend_to_chosen(batch, layer, q, k, by, most=MOST, scale=0.1)

    program = compiled(step, layer, batch, q, k, by, donate_argnums=0)
    memory, pools = program.memory_analysis(), jax.tree.leaves(layer)
    assert memory.alias_size_in_bytes == sum(
        math.prod(each.shape) * each.dtype.itemsize for each in pools
    )
    text = str(program.as_text())
    assert text.count('custom_call_target="tpu_custom_call"') == (2 if index else 1)
    pool = math.prod(layer.keys.shape)
    calls = (" custom-call(", " call(")
    assert not [
        each for each in made_as_large_as(program, pool) if not any(c in each for c in calls)
    ]


@pytest.mark.parametrize("chip", ["v5e", pytest.param("v5p", marks=pytest.mark.nightly)])
def test_glm_5_leaves_pages_in_place(chip: str) -> None:
    check(one_device(chip), heads=4, indexers=32)


@pytest.mark.nightly
@pytest.mark.parametrize("chip", ["v5e", "v5p"])
@pytest.mark.parametrize("blocks", [0, BLOCKS])
@pytest.mark.parametrize("index", [0, 64, 128])
def test_deepseek_v32_leaves_pages_in_place(chip: str, blocks: int, index: int) -> None:
    failures = Failures()
    for dtype in ("float32", "bfloat16", "int8", "float8_e4m3fn"):
        with failures.of(dtype):
            check(one_device(chip), heads=8, indexers=64, blocks=blocks, index=index, dtype=dtype)
    assert not failures, str(failures)


@pytest.mark.nightly
def test_heads_are_divided_over_the_chips_of_a_slice() -> None:
    check(mesh_of("v5e:2x4"), heads=128, indexers=64, axis="model")
