"""What is particular to Qwen2; its logits are in test_families.py."""

from __future__ import annotations

from model_server.models.registry import make_recipe
from tests.model_server.models.layer_shapes import TINY, windows_of

QWEN2 = TINY | {"model_type": "qwen2", "sliding_window": 8, "max_window_layers": 3}


def test_a_window_is_used_only_where_the_config_says_so() -> None:
    assert windows_of(QWEN2) == [None] * 4
    assert windows_of(QWEN2 | {"use_sliding_window": True}) == [None, None, None, 8]


def test_listed_layers_count_more_than_max_window_layers() -> None:
    listed = {"use_sliding_window": True, "layer_types": ["sliding_attention"] * 4}
    assert windows_of(QWEN2 | listed) == [8] * 4


def test_only_queries_keys_and_values_are_biased() -> None:
    declared = make_recipe("auto", QWEN2, {}).blueprint().declarations
    biases = {n for d in declared for n in d.source.names if n.endswith("bias") and ".0." in n}
    prefix = "model.layers.0.self_attn"
    assert biases == {f"{prefix}.{letter}_proj.bias" for letter in "qkv"}
