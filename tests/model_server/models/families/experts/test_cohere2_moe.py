"""Command A+: which layers have windows and positions."""

from __future__ import annotations

from typing import Any

from model_server.models.registry import make_recipe
from tests.model_server.models.family_cases import config_of

CONFIG = config_of("cohere2_moe")


def test_layers_in_front_have_an_order_of_windows_of_their_own() -> None:
    recipe: Any = make_recipe("auto", CONFIG | {"first_k_dense_replace": 2}, {})
    assert recipe.windows == (None, None, 8, 8)
    changes = {"first_k_dense_replace": 2, "prefix_dense_sliding_window_pattern": 2}
    recipe = make_recipe("auto", CONFIG | changes, {})
    assert recipe.windows == (8, None, 8, 8)
