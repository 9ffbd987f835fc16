"""What config.json of DeepSeek-V4 may say, and what its layers cache."""

from __future__ import annotations

import json
from typing import Any

import jax.numpy as jnp
import pytest

from model_server.kernels.compressed import compressed
from model_server.kernels.paged import KernelRefusal
from model_server.kernels.pages import HeadShape, LayerPages, key_major_shapes
from model_server.models.registry import make_recipe
from sax.errors import CheckpointError
from tests.model_server.checkpoints.gguf_case import FAMILIES
from tests.model_server.tiny import one_prompt

CONFIG: dict[str, Any] = json.loads((FAMILIES / "deepseek_v4" / "config.json").read_text())
WITHOUT = {key: value for key, value in CONFIG.items() if key != "compress_ratios"}
NEAR, CHOSEN, ALL = (
    "sliding_attention",
    "compressed_sparse_attention",
    "heavily_compressed_attention",
)


def recipe_of(config: dict[str, Any], **overrides: str) -> Any:
    return make_recipe("auto", config, overrides)


def test_a_layer_caches_near_tokens_and_one_entry_for_several_tokens() -> None:
    """Kinds in turn: none, chosen entries, all entries, chosen entries."""
    recipe = recipe_of(CONFIG)
    cache = recipe.cache(1)
    chosen = HeadShape(1, 24 + 12, 0, every=4), HeadShape(1, 24, 4 * (24 + 12))
    every = HeadShape(1, 24, 0, every=8), HeadShape(1, 24, 2 * 24)
    assert cache.others == (HeadShape(1, 24, 0), *chosen, *every, *chosen)
    # Eight tokens make an entry of four, or one of eight.
    assert recipe.windows == (6, None, 8, None, 8, None, 8)
    assert recipe.choosers == (None, None, 1, None, 3, None, 5)
    shapes = [cache.layer(at, 9, 16, jnp.dtype("float32"), key_major_shapes) for at in (1, 3)]
    assert [each.keys.shape for each in shapes] == [(10, 1, 36, 4), (10, 1, 24, 2)]


def test_a_config_says_in_three_ways_what_layers_attend_to() -> None:
    cases: list[tuple[dict[str, Any], list[int]]] = [
        ({"compress_ratios": [0, 128, 4, 4]}, [1, 2, 2, 2]),
        ({"layer_types": [NEAR, ALL, CHOSEN, CHOSEN]}, [1, 2, 2, 2]),
        ({}, [2, 2, 2, 2]),
        ({"num_hidden_layers": 2, "compress_ratios": [0, 0, 4]}, [1, 1]),
    ]
    for changes, parts in cases:
        assert len(recipe_of(WITHOUT | changes).windows) == sum(parts), changes
    first, second = (recipe_of(WITHOUT | changes) for changes, _ in cases[:2])
    assert first.cache(1) == second.cache(1)


def test_rates_are_read_by_both_of_their_names() -> None:
    new = {key: value for key, value in WITHOUT.items() if key != "compress_rate_hca"}
    new |= {"compress_rates": {ALL: 8}, "layer_types": [ALL] * 4}
    old = WITHOUT | {"layer_types": [ALL] * 4}
    assert recipe_of(new).cache(1) == recipe_of(old).cache(1)


def test_what_is_not_computed_is_refused() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"compress_ratios": [0, 64, 4, 4]}, "compress_ratios"),
        ({"compress_ratios": [0, 4]}, "compress_ratios"),
        ({"compress_rates": {ALL: 1}, "compress_rate_hca": None}, "from 2"),
        ({"compress_rates": {NEAR: 4}}, "compress_rates"),
        ({"o_groups": 5}, "o_groups = 5"),
        ({"index_head_dim": 6}, "index_head_dim = 6"),
        ({"n_shared_experts": 2}, "n_shared_experts"),
        ({"norm_topk_prob": False}, "norm_topk_prob"),
        ({"scoring_func": "softmax"}, "scoring_func"),
        ({"swiglu_limit": 0.0}, "swiglu_limit"),
        ({"qk_rope_head_dim": 7}, "rotate"),
    ]
    for changes, named in cases:
        with pytest.raises(CheckpointError, match=named):
            recipe_of(CONFIG | changes)


def test_pages_that_entries_do_not_fit_are_refused() -> None:
    pages = LayerPages(jnp.zeros((4, 1, 2, 8)), jnp.zeros((4, 1, 8, 4)))
    new = jnp.zeros((9, 1, 2)), jnp.zeros((9, 1, 4))
    for rate in (2, 8, 24):
        compressed(one_prompt(8), pages, pages, *new, rate)
    for rate in (3, 12):
        with pytest.raises(KernelRefusal, match=f"every {rate} tokens, and pages have 8"):
            compressed(one_prompt(8), pages, pages, *new, rate)
