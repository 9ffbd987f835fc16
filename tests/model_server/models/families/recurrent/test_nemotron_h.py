"""What is particular to Nemotron-H; its logits are in test_families.py."""

from __future__ import annotations

from typing import Any

from model_server.models.registry import make_recipe
from tests.model_server.models.family_cases import config_of

NEMOTRON = config_of("nemotron_h")


def without(config: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != key}


def test_experts_and_feed_forwards_keep_nothing() -> None:
    mamba, experts, attention = make_recipe("auto", NEMOTRON, {}).cache(1).states
    assert [array.shape for array in mamba or ()][-1] == (6, 8, 10)
    assert experts == ()
    assert attention is None


def test_a_list_of_kinds_says_what_the_pattern_says() -> None:
    given = make_recipe("auto", NEMOTRON, {}).cache(1)
    for kinds in (["mamba", "moe", "attention"], ["linear_attention", "moe", "full_attention"]):
        for key in ("layers_block_type", "layer_types"):
            listed = without(NEMOTRON, "hybrid_override_pattern") | {key: kinds}
            for config in (listed, without(listed, "num_hidden_layers")):
                assert make_recipe("auto", config, {}).cache(1) == given, (key, kinds)


def test_older_files_call_the_size_of_a_head_differently() -> None:
    older = without(NEMOTRON, "head_dim") | {"attention_head_dim": 12}
    given = make_recipe("auto", NEMOTRON, {}).cache(1)
    assert make_recipe("auto", older, {}).cache(1) == given
