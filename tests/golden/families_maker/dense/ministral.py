"""Golden cases of Ministral, Ministral 3 and the text part of Mistral 3."""

from __future__ import annotations

from typing import Any

from tests.golden.families_maker.case import Case
from tests.golden.families_maker.decoders import decoder, mistral, new_rope

FULL, SLIDING = "full_attention", "sliding_attention"


def ministral(**sizes: Any) -> dict[str, Any]:
    return decoder("MinistralForCausalLM", "ministral", **{"sliding_window": 8} | sizes)


def ministral3(scaling: dict[str, Any], **sizes: Any) -> dict[str, Any]:
    own = {"head_dim": 16, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": None}
    config = decoder("Ministral3ForCausalLM", "ministral3", **own | sizes)
    return new_rope(config, **scaling)


def with_vision(text: dict[str, Any]) -> dict[str, Any]:
    """As published: a text model inside, its usual values left out."""
    vision = {
        "head_dim": 8,
        "hidden_act": "silu",
        "hidden_size": 16,
        "image_size": 28,
        "intermediate_size": 24,
        "model_type": "pixtral",
        "num_attention_heads": 2,
        "num_channels": 3,
        "num_hidden_layers": 1,
        "patch_size": 14,
        "rope_theta": 10000.0,
    }
    return {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "eos_token_id": 2,
        "image_token_index": 10,
        "model_type": "mistral3",
        "multimodal_projector_bias": False,
        "projector_hidden_act": "gelu",
        "spatial_merge_size": 2,
        "text_config": {key: value for key, value in text.items() if key != "architectures"},
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vision_config": vision,
        "vision_feature_layer": -1,
    }


YARN = {
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "factor": 4.0,
    "llama_4_scaling_beta": 0.1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 16,
    "rope_type": "yarn",
    "type": "yarn",
}
STRONG = YARN | {"llama_4_scaling_beta": 0.9, "original_max_position_embeddings": 5}


def changed(config: dict[str, Any], **rope: Any) -> dict[str, Any]:
    return {"rope_parameters": config["rope_parameters"] | rope}


MINISTRAL3 = ministral3(STRONG)

CASES = [
    Case(
        name="ministral_layer_types",
        config=ministral(layer_types=[SLIDING, FULL, FULL], num_hidden_layers=3, head_dim=10),
        tokens=21,
        without={"kinds": {"layer_types": [SLIDING] * 3}},
    ),
    Case(
        name="ministral",
        config=ministral(head_dim=12, num_key_value_heads=1),
        tokens=21,
        without={"window": {"sliding_window": 21}},
    ),
    Case(
        name="ministral3",
        config=MINISTRAL3,
        without={
            "growth": changed(MINISTRAL3, llama_4_scaling_beta=0.0),
            "yarn": changed(MINISTRAL3, rope_type="default", type="default"),
        },
    ),
    Case(
        name="ministral3_window",  # and two different scales
        config=ministral3(
            YARN | {"mscale_all_dim": 0.5, "llama_4_scaling_beta": 0.5},
            num_key_value_heads=1,
            sliding_window=8,
            tie_word_embeddings=True,
        ),
        tokens=40,
        without={"window": {"sliding_window": None}},
    ),
    Case(
        name="mistral3_with_images",  # as Mistral Small 3.1
        config=with_vision(mistral(head_dim=10, sliding_window=None, rope_theta=1000000000.0)),
    ),
    Case(name="mistral3_with_ministral3", config=with_vision(MINISTRAL3)),
]
