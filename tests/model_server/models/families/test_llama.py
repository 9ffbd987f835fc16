"""What the Llama family refuses; what it computes is in test_families.py."""

from __future__ import annotations

import pytest

from model_server.models.families.llama import configure
from model_server.models.recipe import SERVING_DEFAULTS
from sax.errors import CheckpointError
from tests.model_server.models.family_cases import config_of

TIED = config_of("llama_tied")


def test_a_config_without_a_needed_size_is_refused_by_name() -> None:
    with pytest.raises(CheckpointError, match="intermediate_size"):
        configure(
            {"num_attention_heads": 4, "hidden_size": 8, "num_hidden_layers": 1}, SERVING_DEFAULTS
        )


def test_a_rope_scaling_that_is_not_computed_is_refused() -> None:
    config = TIED | {"rope_scaling": {"rope_type": "su", "factor": 4.0}}
    with pytest.raises(CheckpointError, match="'su'"):
        configure(config, SERVING_DEFAULTS)


def test_an_activation_that_is_not_computed_is_refused() -> None:
    with pytest.raises(CheckpointError, match="tanhshrink"):
        configure(TIED | {"hidden_act": "tanhshrink"}, SERVING_DEFAULTS)
