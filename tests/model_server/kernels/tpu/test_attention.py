"""The TPU kernel, interpreted on a CPU, against the reference; its pages, bit for bit."""

from __future__ import annotations

import dataclasses
import functools
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh

from model_server.kernels import reference
from model_server.kernels.paged import Kernel, KernelRefusal, PagedBatch
from model_server.kernels.pages import CacheShape, LayerPages
from model_server.kernels.tpu.attention import TpuAttention
from model_server.models.weights.sharding import AXES
from tests.each_case import Failures
from tests.model_server.kernels.step_mixes import Heads, Mix, as_on_tpu, filled, normal

ALLOWED = {"float32": 2e-5, "bfloat16": 1.5e-2, "int8": 1.5e-2, "float8_e4m3fn": 2e-2}
MESH = Mesh(np.asarray(jax.devices("cpu")[:1]).reshape(1, 1, 1), AXES)
KERNEL = TpuAttention(MESH, None, None, interpret=True)
# As a chip in what can go wrong: memory is no number before it is written, copies come late.
STRICT = TpuAttention(MESH, None, None, interpret=pltpu.InterpretParams())

DECODES = Mix(decodes=(5, 0, 33, 64), chunks=(), blocks=0, block=8, table=4)
CHUNKS = Mix(decodes=(0,), chunks=((0, 20), (7, 9), (30, 8)), blocks=7, block=8, table=4)
BOTH = Mix(decodes=(5, 0, 33), chunks=((3, 20), (30, 8)), blocks=5, block=8, table=4)
LONG = Mix(decodes=(300, 1, 0, 290), chunks=((255, 33), (0, 8)), blocks=6, block=8, table=20)
# Five rows of one sequence, as draft tokens are, across the end of a page.
DRAFT_TOKENS = Mix(
    decodes=(30, 31, 32, 33, 34, 7, 0),
    owners=(0, 0, 0, 0, 0, 1, 2),
    chunks=(),
    blocks=0,
    block=8,
    table=4,
)
# Decodes, a chunk of text, and one of text and two images, each over several pages and blocks.
IMAGES = Mix(
    decodes=(5, 0, 33),
    chunks=((3, 20), (30, 49), (0, 7)),
    blocks=11,
    block=8,
    table=5,
    run=21,
    text=35,
)

GROUPED = Heads(heads=8, kv_heads=2)
MANY = Heads(heads=3, kv_heads=3)
LATENT = Heads(heads=4, kv_heads=1, key_dim=576, value_dim=0)
SHARED = Heads(heads=6, kv_heads=3, key_dim=64, value_dim=64)
UNEQUAL = Heads(heads=4, kv_heads=2, key_dim=192, value_dim=40, window=9, softcap=5.0)


@functools.partial(jax.jit, static_argnames=("softcap", "window", "chunk"))
def attended(batch: PagedBatch, layer: LayerPages, q: Any, k: Any, v: Any, **options: Any) -> Any:
    return batch.attend(layer, q, k, v, scale=q.shape[2] ** -0.5, **options)


def compare(of: Heads, mix: Mix, kernel: TpuAttention = KERNEL) -> None:
    """The step gives what the reference gives, and leaves the same in every page but scratch."""
    rng = np.random.default_rng(7)
    layer, batch = filled(rng, of, mix.pages), mix.batch(rng, of.page_size, kernel)
    shapes = kernel.shapes(of.cache, mix.pages, of.page_size, jnp.dtype(of.dtype))
    q, k = (normal(rng, mix.tokens, heads, of.key_dim) for heads in (of.heads, of.kv_heads))
    v = normal(rng, mix.tokens, of.kv_heads, of.value_dim) if of.value_dim else None
    sinks = jnp.linspace(-4.0, 4.0, of.heads, dtype=jnp.float32) if of.sinks else None
    options = {"softcap": of.softcap, "window": of.window, "sinks": sinks, "chunk": of.chunk}
    truth = dataclasses.replace(batch, kernel=reference.KERNEL)
    wanted, wanted_pages = attended(truth, layer, q, k, v, **options)
    found, pages = attended(batch, as_on_tpu(layer, shapes), q, k, v, **options)
    allowed = ALLOWED[of.dtype]
    np.testing.assert_allclose(found, wanted, rtol=allowed, atol=allowed)
    for array, like in zip(pages, as_on_tpu(wanted_pages, shapes), strict=True):
        assert (array is None) == (like is None)
        if array is not None:
            assert np.asarray(array)[1:].tobytes() == np.asarray(like)[1:].tobytes()


# Each of these is a program of its own and takes seconds to compile.
@pytest.mark.parametrize(
    ("of", "mix", "kernel"),
    [
        (dataclasses.replace(UNEQUAL, sinks=True), IMAGES, KERNEL),
        pytest.param(
            *(dataclasses.replace(SHARED, dtype="int8"), BOTH, STRICT), marks=pytest.mark.extended
        ),
        (dataclasses.replace(SHARED, sinks=True, window=9), BOTH, KERNEL),
        pytest.param(
            *(dataclasses.replace(GROUPED, chunk=16), LONG, KERNEL), marks=pytest.mark.extended
        ),
        # Prompts of which all tokens see each other, shorter than the run that kernels count on
        pytest.param(
            *(GROUPED, dataclasses.replace(BOTH, run=128), KERNEL), marks=pytest.mark.extended
        ),
        *(
            pytest.param(*more, marks=pytest.mark.nightly)
            for more in (
                (dataclasses.replace(UNEQUAL, window=280), LONG, KERNEL),
                (GROUPED, DRAFT_TOKENS, STRICT),
                (GROUPED, IMAGES, STRICT),
                (dataclasses.replace(SHARED, dtype="int8", window=30), IMAGES, STRICT),
                (GROUPED, dataclasses.replace(LONG, run=3), STRICT),
            )
        ),
    ],
)
def test_a_step_equals_the_reference(of: Heads, mix: Mix, kernel: TpuAttention) -> None:
    compare(of, mix, kernel)


def compare_dtypes(of: Heads, mix: Mix, kernel: TpuAttention = KERNEL) -> None:
    failures = Failures()
    for dtype in ALLOWED:
        with failures.of(dtype):
            compare(dataclasses.replace(of, dtype=dtype), mix, kernel)
    assert not failures, str(failures)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "of", [GROUPED, MANY, LATENT, SHARED, UNEQUAL, dataclasses.replace(GROUPED, sinks=True)]
)
@pytest.mark.parametrize("mix", [DECODES, CHUNKS, BOTH, LONG, DRAFT_TOKENS])
def test_any_step_equals_the_reference(of: Heads, mix: Mix) -> None:
    compare_dtypes(of, mix)


@pytest.mark.nightly
@pytest.mark.parametrize("of", [GROUPED, MANY, LATENT, SHARED])
def test_any_window_over_large_pages_equals_the_reference(of: Heads) -> None:
    compare_dtypes(dataclasses.replace(of, page_size=64, window=17, softcap=3.0), LONG)


@pytest.mark.nightly
@pytest.mark.parametrize("of", [GROUPED, LATENT, SHARED, UNEQUAL])
def test_no_copy_of_a_long_step_is_used_before_it_is_there(of: Heads) -> None:
    compare_dtypes(of, LONG, STRICT)


@pytest.mark.nightly
@pytest.mark.parametrize("of", [GROUPED, MANY, LATENT, SHARED, UNEQUAL])
@pytest.mark.parametrize("page_size", [16, 32])
def test_any_images_whose_tokens_see_each_other_equal_the_reference(
    of: Heads, page_size: int
) -> None:
    compare_dtypes(dataclasses.replace(of, page_size=page_size), IMAGES)


@pytest.mark.nightly
@pytest.mark.parametrize("run", [2, 3, 40])
def test_blocks_of_many_small_images_equal_the_reference(run: int) -> None:
    """However many are in a block, it is cut so that its parts have tokens of a few."""
    chunks = ((0, 60), (30, 100))
    compare(GROUPED, dataclasses.replace(BOTH, block=64, chunks=chunks, blocks=3, table=9, run=run))


SMALL = Heads(heads=4, kv_heads=1, key_dim=24, value_dim=0, dtype="float8_e4m3fn")


def small_mix(decodes: Sequence[int], chunks: Sequence[tuple[int, int]]) -> Mix:
    """Of one shape, so that one program runs them all."""
    unused = [(0, 0)] * (5 - len(chunks))
    return Mix(decodes=decodes, chunks=[*chunks, *unused], blocks=5, block=8, table=3)


@pytest.mark.nightly
def test_heads_and_rows_may_be_divided_over_a_mesh() -> None:
    environment = {**os.environ, "NPROC": "16", "JAX_NUM_CPU_DEVICES": "4"}
    found = subprocess.run(
        [sys.executable, "-m", "tests.model_server.kernels.tpu_attention_on_meshes"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert found.returncode == 0, found.stderr
    lines = [line.split() for line in found.stdout.splitlines()]
    assert [name for name, *_ in lines] == ["grouped", "latent"]
    for _, distance, different in lines:
        assert float(distance) < ALLOWED["float32"]
        assert different == "0"


@st.composite
def small_mixes(draw: st.DrawFn) -> Mix:
    decodes, owners = draw(st.lists(st.integers(0, 40), min_size=3, max_size=3)), (0, 1, 2)
    if draw(st.booleans()):  # one sequence's next token and two draft tokens
        decodes, owners = [decodes[0], decodes[0] + 1, decodes[0] + 2], (0, 0, 0)
    chunks, left = [], 5
    while left and draw(st.booleans()):
        count = draw(st.integers(1, min(left * 8, 40)))
        chunks.append((draw(st.integers(0, 40 - count)), count))
        left -= -(-count // 8)
    return dataclasses.replace(small_mix(decodes, chunks), owners=owners)


@pytest.mark.nightly
@settings(max_examples=20, deadline=None)
@given(small_mixes(), st.integers(0, 30))
def test_any_mix_with_images_equals_the_reference(mix: Mix, text: int) -> None:
    compare(dataclasses.replace(SMALL, window=7), dataclasses.replace(mix, run=5, text=text))


@settings(max_examples=20, deadline=None)
@given(small_mixes())
def test_any_mix_of_decodes_and_chunks_equals_the_reference(mix: Mix) -> None:
    compare(SMALL, mix)


def test_what_other_sequences_hold_does_not_matter_even_if_it_is_no_number() -> None:
    """The chunks are short and are fetched to where the decode was before them."""
    rng, of = np.random.default_rng(0), SMALL
    mix = small_mix((40, 3, 3), ((0, 8),) * 5)
    batch = mix.batch(rng, of.page_size, KERNEL)
    shapes = KERNEL.shapes(of.cache, mix.pages, of.page_size, jnp.dtype(of.dtype))
    layer = as_on_tpu(filled(rng, of, mix.pages), shapes)
    theirs = batch.decode_tables[0]
    ill = LayerPages(*(None if a is None else a.at[theirs].set(jnp.nan) for a in layer))
    q, k = normal(rng, mix.tokens, of.heads, of.key_dim), normal(rng, mix.tokens, 1, of.key_dim)
    options = {"softcap": None, "window": None}
    well, _ = attended(batch, layer, q, k, None, **options)
    found, _ = attended(batch, ill, q, k, None, **options)
    assert np.isnan(found[0]).all()
    assert not np.isnan(well).any()
    np.testing.assert_array_equal(found[1:], well[1:])


def test_pages_are_padded_in_their_shapes_and_small_heads_share_rows() -> None:
    def shapes(key_dim: int, value_dim: int, dtype: str) -> LayerPages:
        cache = CacheShape(layers=1, kv_heads=3, key_dim=key_dim, value_dim=value_dim)
        return KERNEL.shapes(cache, 9, 64, jnp.dtype(dtype))

    plain = shapes(80, 96, "bfloat16")
    assert plain.keys.shape == (10, 3, 64, 128)
    assert plain.values is not None
    assert plain.values.shape == (10, 3, 64, 128)
    assert plain.key_scales is None
    both = shapes(64, 64, "int8")
    assert both.keys.shape == (10, 3, 64, 128)
    assert both.values is None
    assert both.key_scales is not None
    assert both.value_scales is not None
    assert both.value_scales.shape == (10, 3, 1, 128)
    assert shapes(576, 0, "float32").keys.shape == (10, 3, 64, 640)


def refused(kernel: Kernel, of: Heads, mix: Mix, words: str) -> None:
    rng = np.random.default_rng(0)
    layer = kernel.shapes(of.cache, mix.pages, of.page_size, jnp.dtype(of.dtype))
    q, k, v = (normal(rng, mix.tokens, n, 128) for n in (of.heads, of.kv_heads, of.kv_heads))
    with pytest.raises(KernelRefusal, match=words):
        jax.eval_shape(
            lambda layer: attended(
                mix.batch(rng, of.page_size, kernel), layer, q, k, v, softcap=None, window=None
            ),
            layer,
        )


def test_what_does_not_fit_a_chip_is_refused_in_words() -> None:
    with pytest.raises(KernelRefusal, match="the page size is 12"):
        KERNEL.shapes(GROUPED.cache, 9, 12, jnp.dtype("bfloat16"))
    tables = Mix(decodes=(1,) * 256, chunks=(), blocks=0, block=8, table=1024)
    refused(KERNEL, GROUPED, tables, "scalar memory holds 786432")
    wide = Heads(heads=512, kv_heads=512)
    refused(KERNEL, wide, BOTH, "give the model more devices")
    disaggregation = dataclasses.replace(KERNEL, heads="model")
    refused(disaggregation, GROUPED, BOTH, "query heads are sharded over model")
