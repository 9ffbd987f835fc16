"""What is particular to Bamba; its logits are in test_families.py."""

from __future__ import annotations

from typing import Any

import pytest

from model_server.models.registry import make_recipe
from sax.errors import CheckpointError
from tests.model_server.models.family_cases import config_of

BAMBA = config_of("bamba")


def test_listed_layers_attend_and_the_others_keep_states() -> None:
    recipe: Any = make_recipe("auto", BAMBA, {})
    assert [state is None for state in recipe.cache(1).states] == [False, True]


def test_indices_of_layers_that_are_not_there_are_refused() -> None:
    for chosen in ([2], [-1], ["1"], [[1]], 1):
        with pytest.raises(CheckpointError, match="attn_layer_indices = .* of its 2 layers"):
            make_recipe("auto", BAMBA | {"attn_layer_indices": chosen}, {})


def test_another_part_of_a_head_than_the_half_does_not_rotate() -> None:
    with pytest.raises(CheckpointError, match="attn_rotary_emb = 12"):
        make_recipe("auto", BAMBA | {"attn_rotary_emb": 12}, {})
