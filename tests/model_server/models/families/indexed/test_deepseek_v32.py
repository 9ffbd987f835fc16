"""Settings in DeepSeek-V3.2's config.json, and how its tokens are cached."""

from __future__ import annotations

import json
from typing import Any

from model_server.models.registry import make_recipe
from tests.model_server.checkpoints.gguf_case import FAMILIES

CONFIG: dict[str, Any] = json.loads((FAMILIES / "deepseek_v32" / "config.json").read_text())


def test_a_token_caches_its_latent_its_rotated_key_and_the_key_for_choosing() -> None:
    recipe: Any = make_recipe("auto", CONFIG, {})
    cache = recipe.cache(1)
    assert cache.key_dim == 16 + 8 + 14
    assert (cache.kv_heads, cache.value_dim, cache.chosen) == (1, 0, True)
