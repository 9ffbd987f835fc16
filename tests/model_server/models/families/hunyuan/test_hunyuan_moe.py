"""Numbers that Hunyuan gives for each layer; its logits are in test_families.py."""

from __future__ import annotations

from typing import Any

from model_server.models.registry import make_recipe
from sax.errors import CheckpointError
from tests.model_server.models.family_cases import config_of
from tests.model_server.models.refusals import refused_otherwise


def test_layers_that_differ_are_refused_by_name() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"moe_topk": [3, 2]}, r"moe_topk = \[3, 2\].* the same number in all layers"),
        ({"moe_topk": 9}, "moe_topk = 9 of num_experts = 8"),
        ({"num_shared_expert": [2, 2]}, r"num_shared_expert = \[2, 2\].* needs 1 in all layers"),
        ({"moe_intermediate_size": 32}, "moe_intermediate_size = 32.* needs 64 in all layers"),
    ]
    config = config_of("hunyuan_moe")
    assert (
        refused_otherwise(
            lambda changes: make_recipe("auto", config | changes, {}), cases, CheckpointError
        )
        == {}
    )
