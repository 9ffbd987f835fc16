"""What is particular to Bamba; its logits are in test_families.py."""

from __future__ import annotations

from typing import Any

from model_server.models.registry import make_recipe
from tests.model_server.models.family_cases import config_of

BAMBA = config_of("bamba")


def test_listed_layers_attend_and_the_others_keep_states() -> None:
    recipe: Any = make_recipe("auto", BAMBA, {})
    assert [state is None for state in recipe.cache(1).states] == [False, True]
