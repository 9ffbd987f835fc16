"""What is particular to OLMo Hybrid; its logits are in test_families.py."""

from __future__ import annotations

from typing import Any

from model_server.models.registry import make_recipe
from tests.model_server.models.family_cases import config_of
from tests.model_server.models.layer_shapes import decoder_of

OLMO = config_of("olmo_hybrid")


def attending(layers: int) -> list[bool]:
    unsaid = {key: value for key, value in OLMO.items() if key != "layer_types"}
    recipe: Any = make_recipe("auto", unsaid | {"num_hidden_layers": layers}, {})
    return [state is None for state in recipe.cache(1).states]


def test_every_fourth_layer_attends_and_at_least_the_last() -> None:
    assert attending(5) == [False, False, False, True, False]
    assert attending(2) == [False, True]


def test_heads_rotate_only_if_there_is_a_base() -> None:
    based = {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}}
    assert [rope is None for rope in decoder_of(OLMO).ropes] == [True, True]
    assert [rope is None for rope in decoder_of(OLMO | based).ropes] == [True, False]
