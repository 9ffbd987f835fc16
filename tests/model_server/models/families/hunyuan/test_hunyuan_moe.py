"""Numbers that Hunyuan gives for each layer; its logits are in test_families.py."""

from __future__ import annotations

from typing import Any

import pytest

from model_server.models.registry import make_recipe
from sax.errors import CheckpointError
from tests.model_server.models.family_cases import config_of


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"moe_topk": [3, 2]}, r"moe_topk = \[3, 2\].* the same number in all layers"),
        ({"moe_topk": 9}, "moe_topk = 9 of num_experts = 8"),
        ({"num_shared_expert": [2, 2]}, r"num_shared_expert = \[2, 2\].* needs 1 in all layers"),
        ({"moe_intermediate_size": 32}, "moe_intermediate_size = 32.* needs 64 in all layers"),
    ],
)
def test_layers_that_differ_are_refused_by_name(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(CheckpointError, match=told):
        make_recipe("auto", config_of("hunyuan_moe") | changes, {})
