"""The TPU kernel, compiled by the real compiler for chips that are not here."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import LayerPages
from model_server.kernels.tpu.attention import TpuAttention
from tests.each_case import Failures
from tests.model_server.kernels.step_mixes import Heads
from tests.model_server.tpu_compiler import CHIPS, compiled, mesh_of, needs_compiler, one_device

PAGES = 4095
# What one chip has of them.
MODELS = {
    "175B on 64": Heads(heads=2, kv_heads=2),
    "175B on 32": Heads(heads=3, kv_heads=3),
    "Llama 3 70B on 8": Heads(heads=8, kv_heads=1),
    "Gemma 2 27B on 8": Heads(heads=4, kv_heads=2, window=4096, softcap=50.0),
    "Gemma 7B on 4": Heads(heads=4, kv_heads=4, key_dim=256, value_dim=256),
    "heads of 64": Heads(heads=16, kv_heads=4, key_dim=64, value_dim=64),
    "heads of 80": Heads(heads=32, kv_heads=32, key_dim=80, value_dim=80),
    "DeepSeek V3 on 8": Heads(heads=16, kv_heads=1, key_dim=576, value_dim=0),
    "gpt-oss on 8": Heads(heads=8, kv_heads=1, key_dim=64, value_dim=64, window=128, sinks=True),
    "Llama 4 on 8": Heads(heads=5, kv_heads=1, chunk=8192),
    "keys of 192": Heads(heads=16, kv_heads=16, key_dim=192, value_dim=128),
}
GEMMA_3 = Heads(heads=8, kv_heads=4, key_dim=256, value_dim=256)


def check(
    of: Heads,
    mesh: Mesh,
    dtype: str,
    *,
    axis: str | None = None,
    page_size: int = 64,
    decodes: int = 64,
    blocks: int = 8,
    block: int = 32,
    context: int = 2048,
    run: int = 0,
) -> None:
    """It compiles; the pages stay where they are, and nothing as large is made beside them."""
    kernel = TpuAttention(mesh, axis, axis if of.value_dim else None)

    def held(shape: tuple[int, ...], dtype: Any, axis: str | None = None) -> Any:
        spec = (axis,) if len(shape) == 1 else (None, axis)
        sharding = NamedSharding(mesh, PartitionSpec(*spec) if axis else PartitionSpec())
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    def numbers(*shape: int) -> Any:
        return held(shape, jnp.int32)

    tokens, table = decodes + blocks * block, context // page_size
    places = (numbers(tokens), numbers(tokens), numbers(decodes, table), numbers(decodes, 1))
    batch = PagedBatch(*places, numbers(blocks, table), numbers(blocks, block), kernel=kernel)
    if run:  # of images whose tokens see each other
        batch = replace(batch, block_ahead=numbers(blocks, block), least_run=run)
    layer: LayerPages = jax.tree.map(
        lambda array: held(array.shape, array.dtype, kernel.pages),
        kernel.shapes(of.cache, PAGES, page_size, jnp.dtype(dtype)),
    )
    q = held((tokens, of.heads, of.key_dim), jnp.float32, axis)
    k = held((tokens, of.kv_heads, of.key_dim), jnp.float32, kernel.pages)
    v = held((tokens, of.kv_heads, of.value_dim), jnp.float32, kernel.pages)

    sinks = held((of.heads,), jnp.float32, axis) if of.sinks else None

    def step(layer: Any, batch: Any, q: Any, k: Any, v: Any, sinks: Any) -> Any:
        options = {"scale": 0.1, "softcap": of.softcap, "window": of.window, "sinks": sinks}
        options["chunk"] = of.chunk
        return batch.attend(layer, q, k, v if of.value_dim else None, **options)

    program = compiled(step, layer, batch, q, k, v, sinks, donate_argnums=0)
    parts = [(a.sharding.shard_shape(a.shape), a.dtype.itemsize) for a in jax.tree.leaves(layer)]
    pool = sum(math.prod(shape) * size for shape, size in parts)
    memory = program.memory_analysis()
    # As large as their shapes say: the plan counts on it. The rest are the results of a step.
    assert memory.alias_size_in_bytes == pool
    assert memory.temp_size_in_bytes < pool // 4
    text = program.as_text()
    assert text.count('custom_call_target="tpu_custom_call"') == 1
    dims = {",".join(map(str, shape)) for shape, _ in parts}
    copied = re.findall(
        r"= \w+\[([\d,]+)\]\S* (?:copy|copy-start|fusion|scatter|transpose)\(", text
    )
    assert not dims & set(copied)


@needs_compiler
def test_the_smallest_chip_compiles_a_step_that_leaves_pages_in_place() -> None:
    check(MODELS["175B on 32"], one_device("v5e"), "bfloat16")


@needs_compiler
def test_the_smallest_chip_compiles_images_whose_tokens_see_each_other() -> None:
    check(replace(GEMMA_3, window=1024), one_device("v5e"), "bfloat16", block=128, run=256)


@needs_compiler
@pytest.mark.nightly
@pytest.mark.parametrize("chip", CHIPS)
def test_every_chip_compiles_images_whose_tokens_see_each_other(chip: str) -> None:
    failures = Failures()
    for window in (None, 1024):
        with failures.of(window):
            of = replace(GEMMA_3, window=window)
            check(of, one_device(chip), "bfloat16", block=128, run=256)
    assert not failures, str(failures)


@needs_compiler
@pytest.mark.nightly
def test_small_images_whose_tokens_see_each_other_compile_for_the_smallest_chip() -> None:
    capped = Heads(heads=8, kv_heads=1, window=512, softcap=50.0, sinks=True)
    check(capped, one_device("v5e"), "int8", block=64, run=4)


@needs_compiler
def test_heads_are_divided_over_the_chips_of_a_slice() -> None:
    check(Heads(heads=32, kv_heads=8, sinks=True), mesh_of("v5e:2x2"), "bfloat16", axis="model")


@needs_compiler
@pytest.mark.nightly
def test_latent_pages_stay_whole_where_heads_are_divided() -> None:
    latent = Heads(heads=128, kv_heads=1, key_dim=576, value_dim=0)
    check(latent, mesh_of("v5e:2x4"), "bfloat16", axis="model")


def check_dtypes(of: Heads, chip: str, page_size: int = 64) -> None:
    failures = Failures()
    for dtype in ("float32", "bfloat16", "int8", "float8_e4m3fn"):
        with failures.of(dtype):
            check(of, one_device(chip), dtype, page_size=page_size)
    assert not failures, str(failures)


@needs_compiler
@pytest.mark.nightly
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("model", MODELS)
def test_every_chip_compiles_every_kind_of_model(chip: str, model: str) -> None:
    check_dtypes(MODELS[model], chip)


@needs_compiler
@pytest.mark.nightly
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("page_size", [16, 24, 32, 128, 256])
def test_every_chip_compiles_every_page_size(chip: str, page_size: int) -> None:
    check_dtypes(MODELS["175B on 32"], chip, page_size)


@needs_compiler
@pytest.mark.nightly
@pytest.mark.parametrize("chip", CHIPS)
def test_every_chip_compiles_every_size_of_step(chip: str) -> None:
    failures = Failures()
    for step in (
        {"decodes": 1, "blocks": 1},
        {"blocks": 0},
        {"block": 256},
        {"block": 1},
        {"decodes": 256, "context": 2**15},
    ):
        with failures.of(step):
            check(MODELS["Llama 3 70B on 8"], one_device(chip), "bfloat16", **step)
    assert not failures, str(failures)
