"""Granite's layers with windows: a rope base for each."""

from __future__ import annotations

from typing import Any

import pytest

from model_server.models.registry import make_recipe
from sax.errors import CheckpointError
from tests.model_server.models.family_cases import config_of


def test_every_fourth_layer_sees_everything_unless_the_config_says_otherwise() -> None:
    config = {key: value for key, value in config_of("granite_swa").items() if key != "layer_types"}
    recipe: Any = make_recipe("auto", config, {})
    assert recipe.windows == (None, 8, 8, 8)


@pytest.mark.parametrize("bases", [[0, 10000.0], [0, 1, 2, "3"], 10000.0])
def test_a_rope_base_is_needed_for_each_layer(bases: Any) -> None:
    with pytest.raises(CheckpointError, match="layer_rope_theta.*for each of 4 layers"):
        make_recipe("auto", config_of("granite_swa") | {"layer_rope_theta": bases}, {})
