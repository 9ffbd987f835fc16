"""Falcon-H1's layers as the engine sees them; its logits are in test_families.py."""

from __future__ import annotations

from typing import Any

from model_server.models.recipe import Recipe
from model_server.models.registry import make_recipe
from tests.model_server.models.family_cases import config_of

FALCON = config_of("falcon_h1")


def recipe(**changes: Any) -> Recipe:
    made = make_recipe("auto", FALCON | changes, {})
    assert isinstance(made, Recipe)
    return made


def test_a_layer_is_a_half_with_keys_and_a_half_with_a_state() -> None:
    made = recipe()
    attends, keeps, *_ = made.cache(1).states
    assert made.cache(1).layers == 4
    assert attends is None
    assert [array.shape for array in keeps or ()][-1] == (6, 12, 10)
    assert made.windows == (None, 2, None, 2)
    assert made.row == 2 * made.embed
