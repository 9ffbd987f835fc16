"""Attention to chosen tokens by the TPU kernels, interpreted, against plain XLA."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh

from model_server.kernels import xla
from model_server.kernels.chosen import Choosing, Chosen, attend_to_chosen
from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import LayerPages
from model_server.kernels.tpu.attention import TpuAttention
from model_server.kernels.tpu.choosing import highest
from model_server.kernels.tpu.pages import lanes
from model_server.models.weights.sharding import AXES
from tests.model_server.kernels.step_mixes import Heads, Mix, as_on_tpu, filled, normal

MESH = Mesh(np.asarray(jax.devices("cpu")[:1]).reshape(1, 1, 1), AXES)
KERNEL = TpuAttention(MESH, None, None, interpret=True)
STRICT = TpuAttention(MESH, None, None, interpret=pltpu.InterpretParams())
ALLOWED = {"float32": 2e-5, "bfloat16": 1.5e-2, "int8": 1.5e-2, "float8_e4m3fn": 2e-2}
HEADS, INDEXERS, MOST = 4, 5, 20

BOTH = Mix(decodes=(5, 0, 33, 64), chunks=((3, 20), (30, 8)), blocks=5, block=8, table=4)
LONG = Mix(decodes=(300, 1, 0, 290), chunks=((255, 33), (0, 8)), blocks=6, block=8, table=20)
DECODES = Mix(decodes=(100, 7, 1200), chunks=(), blocks=0, block=8, table=80)


@dataclasses.dataclass(frozen=True)
class Row:
    """Numbers of a cached token: the vector, and the key for choosing."""

    mixed: int
    index: int
    dtype: str = "float32"
    page_size: int = 16

    @property
    def of(self) -> Heads:
        dim = self.mixed + self.index
        return Heads(
            heads=HEADS,
            kv_heads=1,
            key_dim=dim,
            value_dim=0,
            dtype=self.dtype,
            page_size=self.page_size,
        )


TOGETHER, APART = Row(24, 14), Row(144, 128)


@functools.partial(jax.jit, static_argnames=("most",))
def attended(
    batch: PagedBatch, layer: LayerPages, q: Any, k: Any, choosing: Any, most: int = MOST
) -> Any:
    return attend_to_chosen(batch, layer, q, k, choosing, most=most, scale=0.2)


def whole(rng: np.random.Generator, *shape: int) -> jax.Array:
    """Small whole numbers: sums of products are exact, and many are equal."""
    return jnp.asarray(rng.integers(-1, 2, size=shape), jnp.float32)


def placed(layer: LayerPages, row: Row, shapes: LayerPages) -> LayerPages:
    """Pages of plain XLA as a TPU holds them."""
    wide: Any = np.asarray(layer.keys)
    first = max(row.mixed, lanes(row.mixed + row.index) - lanes(row.index))
    gap = [(0, 0)] * 2 + [(0, first - row.mixed), (0, 0)]
    keys = np.concatenate([np.pad(wide[:, :, : row.mixed], gap), wide[:, :, row.mixed :]], axis=2)
    return as_on_tpu(layer._replace(keys=keys), shapes)


def compare(row: Row, mix: Mix, kernel: TpuAttention = KERNEL, most: int = MOST) -> None:
    """The step gives what plain XLA gives, chooses the same, and leaves the same pages."""
    rng, of = np.random.default_rng(7), row.of
    batch = mix.batch(rng, of.page_size, kernel)
    layer = filled(rng, of, mix.pages)
    keys = whole(rng, layer.keys.shape[0], 1, row.index, of.page_size).astype(layer.keys.dtype)
    layer = layer._replace(keys=layer.keys.at[:, :, row.mixed :].set(keys))
    if layer.key_scales is not None:
        ones = jnp.ones_like(layer.key_scales)
        layer = layer._replace(key_scales=ones / 256)
    shapes = kernel.shapes(of.cache, mix.pages, of.page_size, jnp.dtype(of.dtype))
    q = normal(rng, mix.tokens, HEADS, row.mixed)
    new = jnp.concatenate(
        [normal(rng, mix.tokens, 1, row.mixed), whole(rng, mix.tokens, 1, row.index)], axis=-1
    )
    choosing = Choosing(
        whole(rng, mix.tokens, INDEXERS, row.index), whole(rng, mix.tokens, INDEXERS)
    )
    plain = dataclasses.replace(batch, kernel=xla.KERNEL)
    wanted, wanted_pages, rows = attended(plain, layer, q, new, choosing, most)
    found, pages, chosen = attended(batch, placed(layer, row, shapes), q, new, choosing, most)
    allowed = ALLOWED[row.dtype]
    same_choice(batch, chosen, rows)
    np.testing.assert_allclose(found, wanted[..., : row.mixed], rtol=allowed, atol=allowed)
    for array, like in zip(pages, placed(wanted_pages, row, shapes), strict=True):
        if array is not None:
            assert np.asarray(array)[1:].tobytes() == np.asarray(like)[1:].tobytes()


def same_choice(batch: PagedBatch, found: Chosen, wanted: Chosen) -> None:
    """They mark the same of the tokens that queries see."""
    limits = (batch.decode_limits, batch.block_limits)
    for marks, like, of in zip(found, wanted, limits, strict=True):
        if marks is None or like is None:
            assert marks is like
        else:
            seen = np.arange(marks.shape[2]) < np.asarray(of)[..., None]
            np.testing.assert_array_equal(marks & seen, like & seen)


@pytest.mark.parametrize(
    ("row", "mix", "kernel"),
    [
        (TOGETHER, BOTH, KERNEL),
        pytest.param(
            *(dataclasses.replace(APART, dtype="int8"), BOTH, KERNEL), marks=pytest.mark.extended
        ),
        *(
            pytest.param(*more, marks=pytest.mark.nightly)
            for more in (
                (APART, BOTH, STRICT),
                (APART, DECODES, KERNEL),
                (APART, LONG, KERNEL),
                (dataclasses.replace(APART, dtype="bfloat16", page_size=64), LONG, KERNEL),
                (dataclasses.replace(TOGETHER, dtype="float8_e4m3fn"), LONG, STRICT),
            )
        ),
    ],
)
def test_a_step_chooses_and_attends_as_plain_xla_does(
    row: Row, mix: Mix, kernel: TpuAttention
) -> None:
    compare(row, mix, kernel)


@pytest.mark.nightly
def test_tables_of_no_more_tokens_than_are_chosen_attend_to_all() -> None:
    compare(APART, BOTH, most=64)


@st.composite
def steps(draw: st.DrawFn) -> Mix:
    """Of one shape, so that one program runs them all."""
    decodes = draw(st.lists(st.integers(0, 64), min_size=3, max_size=3))
    chunks, left = [], 5
    while left and draw(st.booleans()):
        count = draw(st.integers(1, min(left * 8, 40)))
        chunks.append((draw(st.integers(0, 64 - count)), count))
        left -= -(-count // 8)
    unused = [(0, 0)] * (5 - len(chunks))
    return Mix(decodes=decodes, chunks=[*chunks, *unused], blocks=5, block=8, table=4)


@pytest.mark.nightly
@settings(max_examples=20, deadline=None)
@given(steps())
def test_any_step_chooses_and_attends_as_plain_xla_does(mix: Mix) -> None:
    compare(TOGETHER, mix)


NUMBERS = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e30, -1e30])


@settings(max_examples=30, deadline=None)
@given(
    st.lists(NUMBERS, min_size=40, max_size=40),
    st.lists(st.integers(0, 20), min_size=2, max_size=2),
    st.sampled_from([1, 7, 20]),
)
def test_of_equal_scores_the_earliest_are_chosen(
    scores: list[float], limits: list[int], most: int
) -> None:
    found, of = jnp.asarray(scores, jnp.float32).reshape(1, 2, 20), jnp.asarray([limits])
    marks = np.asarray(highest(found, of, most))
    seen = np.arange(20) < np.asarray(of)[..., None]
    _, places = jax.lax.top_k(jnp.where(seen, found, -jnp.inf), most)
    wanted = np.zeros((1, 2, 20), bool)
    np.put_along_axis(wanted, np.asarray(places), True, axis=-1)
    np.testing.assert_array_equal(marks, wanted)
