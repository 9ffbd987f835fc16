"""What is particular to Granite 4; its logits are in test_families.py."""

from __future__ import annotations

from model_server.models.registry import make_recipe
from tests.model_server.models.family_cases import config_of

GRANITE = config_of("granitemoehybrid")


def test_mamba_layers_keep_states_and_the_others_attend() -> None:
    states = make_recipe("auto", GRANITE, {}).cache(1).states
    assert states[0] is not None
    assert states[1] is None
    assert [array.shape for array in states[0]] == [(96, 3), (10, 3), (10, 3), (8, 12, 10)]


def test_the_size_of_a_mamba_head_may_follow_from_their_number() -> None:
    given = make_recipe("auto", GRANITE, {}).cache(1)
    assert make_recipe("auto", GRANITE | {"mamba_d_head": "auto"}, {}).cache(1) == given
