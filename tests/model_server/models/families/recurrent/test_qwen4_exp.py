"""Qwen4's layers as the engine sees them, and the places of keys; its logits are golden cases."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from model_server.kernels.pages import CacheShape, HeadShape, allocate, write
from model_server.models.families.indexed.whole_blocks import places_of, with_places
from model_server.models.recipe import Recipe
from model_server.models.registry import make_recipe
from tests.model_server.models.family_cases import config_of

QWEN = config_of("qwen4_exp")


def recipe(**changes: Any) -> Recipe:
    made = make_recipe("auto", QWEN | changes, {})
    assert isinstance(made, Recipe)
    return made


def test_a_layer_that_attends_is_one_that_chooses_and_one_that_sees() -> None:
    made = recipe()
    cache = made.cache(1)
    assert cache.layers == 4
    delta, other, *rest = cache.states
    assert rest == [None, None]
    assert delta == other
    assert [array.shape for array in delta or ()][-2:] == [(192, 9), (2,)]
    assert cache.others[2:] == (HeadShape(1, 12, 0), None)
    assert made.choosers == (None, None, None, 2)
    assert made.row == 4 * made.embed + 1


def test_without_ngrams_no_token_is_carried() -> None:
    made = recipe(ple_layer_ids=[])
    assert made.row == 4 * made.embed
    assert len(made.cache(1).states[0] or ()) == 4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "float8_e4m3fn"])
def test_places_survive_in_pages_of_every_kind(dtype: str) -> None:
    rng = np.random.default_rng(0)
    places = np.concatenate([rng.integers(0, 2**24, (3, 60)), [[0, 2**24 - 1, 7, 8]] * 3], axis=1)
    sizes = 10.0 ** rng.integers(-4, 4, (places.shape[1], 1, 1))
    keys = jnp.asarray(rng.standard_normal((len(sizes), 1, 12)) * sizes, jnp.float32)
    appended = with_places(keys, jnp.asarray(places, jnp.int32))
    width = appended.shape[-1]
    cache = CacheShape(layers=1, kv_heads=1, key_dim=width, value_dim=0)
    (layer,) = allocate(cache, 1, len(sizes), jnp.dtype(dtype))
    at = jnp.arange(len(sizes), dtype=jnp.int32)
    layer = write(layer, appended, None, jnp.ones_like(at), at)
    held = layer.keys[1, 0].T.astype(jnp.float32)
    if layer.key_scales is not None:
        held = held * layer.key_scales[1, 0][:, None]
    assert places_of(held[:, 12:]).tolist() == places.tolist()
