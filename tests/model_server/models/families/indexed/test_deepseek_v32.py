"""Settings in DeepSeek-V3.2's config.json, and how its tokens are cached."""

from __future__ import annotations

import json
from typing import Any

from model_server.models.registry import make_recipe
from sax.errors import CheckpointError
from tests.model_server.checkpoints.gguf_case import FAMILIES
from tests.model_server.models.refusals import refused_otherwise

CONFIG: dict[str, Any] = json.loads((FAMILIES / "deepseek_v32" / "config.json").read_text())


def test_a_token_caches_its_latent_its_rotated_key_and_the_key_for_choosing() -> None:
    recipe: Any = make_recipe("auto", CONFIG, {})
    cache = recipe.cache(1)
    assert cache.key_dim == 16 + 8 + 14
    assert (cache.kv_heads, cache.value_dim, cache.chosen) == (1, 0, True)


def test_what_is_not_computed_is_refused_by_name() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"layer_types": ["full_attention"] * 3}, "full_attention.*indexed_attention"),
        ({"index_head_dim": 6}, "index_head_dim = 6"),
        ({"q_lora_rank": None}, "q_lora_rank = None"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"index_block": 3}, "index_block"),
    ]
    assert (
        refused_otherwise(
            lambda changes: make_recipe("auto", CONFIG | changes, {}), cases, CheckpointError
        )
        == {}
    )
