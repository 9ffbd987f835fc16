"""What is particular to Granite 4; its logits are in test_families.py."""

from __future__ import annotations

from typing import Any

import pytest

from model_server.models.registry import make_recipe
from sax.errors import CheckpointError
from tests.model_server.models.family_cases import config_of

GRANITE = config_of("granitemoehybrid")


def refused(**changes: Any) -> str:
    with pytest.raises(CheckpointError) as error:
        make_recipe("auto", GRANITE | changes, {})
    return str(error.value)


def test_mamba_layers_keep_states_and_the_others_attend() -> None:
    states = make_recipe("auto", GRANITE, {}).cache(1).states
    assert states[0] is not None
    assert states[1] is None
    assert [array.shape for array in states[0]] == [(96, 3), (10, 3), (10, 3), (8, 12, 10)]


def test_the_size_of_a_mamba_head_may_follow_from_their_number() -> None:
    given = make_recipe("auto", GRANITE, {}).cache(1)
    assert make_recipe("auto", GRANITE | {"mamba_d_head": "auto"}, {}).cache(1) == given


def test_unknown_kinds_of_layers_and_sizes_that_do_not_fit_are_refused_by_name() -> None:
    assert "layer_types = ['mamba', 'moe']" in refused(layer_types=["mamba", "moe"])
    assert "layer_types = [['mamba'], 1]" in refused(layer_types=[["mamba"], 1])
    assert "for each of 2 layers" in refused(layer_types=["mamba"])
    assert "hidden_size * mamba_expand = 96" in refused(mamba_d_head=16)
    assert "time_step_limit = [0.1]" in refused(time_step_limit=[0.1])
    assert "position_embedding_type = 'alibi'" in refused(position_embedding_type="alibi")
