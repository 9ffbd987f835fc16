"""Golden cases of Granite."""

from __future__ import annotations

from typing import Any

from tests.golden.families_maker.case import Case
from tests.golden.families_maker.decoders import decoder, new_rope


def granite(**sizes: Any) -> dict[str, Any]:
    own = {
        "attention_bias": False,
        "attention_multiplier": 0.125,
        "embedding_multiplier": 12.0,
        "logits_scaling": 8.0,
        "mlp_bias": False,
        "residual_multiplier": 0.22,
        "tie_word_embeddings": True,
    }
    return decoder("GraniteForCausalLM", "granite", **own | sizes)


def granite_swa(**sizes: Any) -> dict[str, Any]:
    own = {
        "layer_rope_theta": [0, 10000.0, 500.0, 10000],
        "residual_multiplier": 0.7,
        "layer_types": ["full_attention", *["sliding_attention"] * 2, "full_attention"],
        "num_hidden_layers": 4,
        "sliding_window": 8,
    }
    names = {"architectures": ["GraniteSWAForCausalLM"], "model_type": "granite_swa"}
    return granite(**own | sizes) | names


CASES = [
    Case(
        name="granite_swa",
        config=granite_swa(),
        without={
            "window": {"sliding_window": 64},
            "bases": {"layer_rope_theta": [10000.0] * 4},
            "layers": {"residual_multiplier": 1.0},
        },
    ),
    Case(
        name="granite_swa_biases",  # layers in the usual order, which all rotate alike
        config={
            key: value
            for key, value in new_rope(
                granite_swa(attention_bias=True, layer_rope_theta=None, mlp_bias=True)
            ).items()
            if key != "layer_types"
        },
        without={"window": {"sliding_window": 64}},
    ),
    Case(
        name="granite",
        config=granite(),
        without={
            "scores": {"attention_multiplier": 0.5},
            "embeddings": {"embedding_multiplier": 1.0},
            "logits": {"logits_scaling": 1.0},
            "layers": {"residual_multiplier": 1.0},
        },
    ),
    Case(
        name="granite_biases",
        config=granite(
            attention_bias=True,
            head_dim=10,
            mlp_bias=True,
            num_key_value_heads=1,
            tie_word_embeddings=False,
        ),
        without={"layers": {"residual_multiplier": 1.0}},
    ),
    Case(
        name="granite_rope_parameters",  # multipliers that are left out
        config={
            key: value
            for key, value in new_rope(granite(attention_multiplier=0.25)).items()
            if key not in ("embedding_multiplier", "logits_scaling", "residual_multiplier")
        },
        without={"scores": {"attention_multiplier": 1.0}},
    ),
]
