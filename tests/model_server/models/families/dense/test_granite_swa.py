"""Granite's layers with windows: a rope base for each."""

from __future__ import annotations

from typing import Any

from model_server.models.registry import make_recipe
from tests.model_server.models.family_cases import config_of


def test_every_fourth_layer_sees_everything_unless_the_config_says_otherwise() -> None:
    config = {key: value for key, value in config_of("granite_swa").items() if key != "layer_types"}
    recipe: Any = make_recipe("auto", config, {})
    assert recipe.windows == (None, 8, 8, 8)
