"""What config.json of GLM-5 may say, and which layers share a choice of tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest

from model_server.models.registry import make_recipe
from sax.errors import InvalidRequest
from tests.model_server.checkpoints.gguf_case import FAMILIES

CONFIG: dict[str, Any] = json.loads((FAMILIES / "glm_moe_dsa" / "config.json").read_text())
WITHOUT = {key: value for key, value in CONFIG.items() if key != "indexer_types"}
LAYERS = {"num_hidden_layers": 6, "mlp_layer_types": None}


def test_layers_that_share_a_choice_cache_no_key_for_choosing() -> None:
    recipe: Any = make_recipe("auto", CONFIG, {})
    cache = recipe.cache(1)
    assert (cache.key_dim, cache.chosen) == (16 + 8 + 14, True)
    assert [other and other.key_dim for other in cache.others] == [None, 16 + 8, None]
    assert recipe.choosers == (None, 0, None)
    assert recipe.max_context == CONFIG["max_position_embeddings"]


def test_a_config_says_in_three_ways_which_layers_share() -> None:
    cases: list[tuple[dict[str, Any], tuple[int | None, ...]]] = [
        ({}, (None,) * 6),
        ({"index_topk_freq": 4}, (None, None, 1, 1, 1, None)),
        ({"index_topk_freq": 3, "index_skip_topk_offset": 3}, (None, None, None, 2, 2, None)),
        ({"index_topk_pattern": "FSSFFS"}, (None, 0, 0, None, None, 4)),
        ({"index_topk_pattern": ["full"] * 5 + ["shared"]}, (*(None,) * 5, 4)),
        # A layer that drafts a token further may be listed, too.
        ({"indexer_types": ["full"] * 7, "index_topk_freq": 2}, (None,) * 6),
    ]
    found = [make_recipe("auto", WITHOUT | LAYERS | changes, {}) for changes, _ in cases]
    assert [recipe.choosers for recipe in found] == [choosers for _, choosers in cases]


def test_stages_are_cut_only_where_a_layer_chooses() -> None:
    config = WITHOUT | LAYERS | {"index_topk_pattern": "FSSFSS"}
    recipe: Any = make_recipe("auto", config, {"NUM_STAGES": "2"})
    assert len(recipe.cut()) == 2
    recipe = make_recipe("auto", config, {"NUM_STAGES": "3"})
    with pytest.raises(
        InvalidRequest, match="6 layers, of which 4 need the one before: give at most 2"
    ):
        recipe.cut()
