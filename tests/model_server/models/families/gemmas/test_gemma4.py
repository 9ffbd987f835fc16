"""Gemma 4's two kinds of layers; its logits are in test_families.py."""

from __future__ import annotations

from typing import Any

import pytest

from model_server.kernels.pages import HeadShape
from model_server.models.recipe import Recipe
from model_server.models.registry import make_recipe
from sax.errors import InvalidRequest
from tests.model_server.models.family_cases import config_of

GEMMA = config_of("gemma4")
EXPERTS = config_of("gemma4_experts_keys_as_values")


def recipe(config: dict[str, Any], **changes: Any) -> Recipe:
    made = make_recipe("auto", config | changes, {})
    assert isinstance(made, Recipe)
    return made


def test_layers_that_see_everything_cache_larger_heads() -> None:
    cache = recipe(GEMMA).cache(1)
    assert (cache.kv_heads, cache.key_dim) == (2, 12)
    assert cache.others[:2] == (None, HeadShape(2, 16, 16))


def test_fewer_heads_are_copied_like_the_others_or_refused() -> None:
    made = recipe(EXPERTS)
    assert made.cache(1).others == (None, None, HeadShape(1, 16, 16))
    assert made.cache(4).others[2] == HeadShape(4, 16, 16)
    odd = recipe(EXPERTS, num_attention_heads=6, num_key_value_heads=3)
    with pytest.raises(InvalidRequest, match="3 and 1 KV heads, in different layers"):
        odd.cache(2)


def test_their_number_counts_only_where_keys_are_values() -> None:
    alike = recipe(GEMMA, global_head_dim=12, num_global_key_value_heads=1)
    assert alike.cache(1).others == ()


def test_the_last_layer_has_no_window_whatever_the_list_says() -> None:
    sliding = ["sliding_attention"] * 7
    made = recipe(GEMMA, layer_types=["full_attention", *sliding], num_kv_shared_layers=0)
    assert made.windows == (None, *[8] * 6, None)


def test_sizes_layer_by_layer_say_what_the_published_keys_say() -> None:
    names = ("global_head_dim", "num_global_key_value_heads")
    listed = {key: value for key, value in EXPERTS.items() if key not in names}
    each = {"2": {"head_dim": 16, "num_key_value_heads": 1}}
    assert recipe(listed, per_layer_config=each).cache(2) == recipe(EXPERTS).cache(2)
