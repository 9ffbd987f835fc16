"""Two factors of Phi-3.5-MoE's positions; its logits are in test_families.py."""

from __future__ import annotations

import pytest

from model_server.models.registry import make_recipe
from sax.errors import CheckpointError
from tests.model_server.models.family_cases import config_of

PHI = config_of("phimoe")


def test_long_and_short_sequences_have_one_factor() -> None:
    unlike = PHI["rope_scaling"] | {"long_mscale": 1.3}
    with pytest.raises(CheckpointError, match="short_mscale = 1.24 and long_mscale = 1.3"):
        make_recipe("auto", PHI | {"rope_scaling": unlike}, {})


def test_two_experts_of_a_token_are_computed() -> None:
    with pytest.raises(CheckpointError, match="num_experts_per_tok = 3"):
        make_recipe("auto", PHI | {"num_experts_per_tok": 3}, {})
