"""Golden cases of SmolLM3."""

from __future__ import annotations

from typing import Any

from tests.golden.families_maker.case import Case
from tests.golden.families_maker.decoders import YARN, decoder, new_rope


def smollm3(**sizes: Any) -> dict[str, Any]:
    own = {
        "attention_bias": False,
        "max_window_layers": 28,
        "mlp_bias": False,
        "no_rope_layer_interval": 4,
        "no_rope_layers": [1, 1, 1, 0],
        "num_hidden_layers": 4,
        "pad_token_id": 2,
        "pretraining_tp": 2,
        "rope_theta": 5000000.0,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
    }
    return decoder("SmolLM3ForCausalLM", "smollm3", **own | sizes)


ALL = [1, 1, 1, 1]

CASES = [
    Case(
        name="smollm3",
        config=smollm3(),
        without={
            "layers without rope": {"no_rope_layers": ALL},
            "theta": {"rope_theta": 10000.0},
        },
    ),
    Case(
        name="smollm3_interval",  # and biases, an odd head, one kv head, an own output head
        config=smollm3(
            attention_bias=True,
            head_dim=10,
            mlp_bias=True,
            no_rope_layers=None,
            no_rope_layer_interval=2,
            num_key_value_heads=1,
            tie_word_embeddings=False,
        ),
        without={"interval": {"no_rope_layer_interval": 4}},
    ),
    Case(
        name="smollm3_window",  # where there is no rope
        config=smollm3(sliding_window=8, use_sliding_window=True, no_rope_layers=[0, 1, 0, 1]),
        tokens=21,
        without={"window": {"use_sliding_window": False}},
    ),
    Case(
        name="smollm3_yarn",
        config=new_rope(
            smollm3(layer_types=["full_attention"] * 4, head_dim=16),
            **YARN | {"rope_type": "yarn"},
        ),
        without={"yarn": {"rope_parameters": {"rope_type": "default", "rope_theta": 5000000.0}}},
    ),
]
