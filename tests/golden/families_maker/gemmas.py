"""The grid of Gemma 1, 2 and 3."""

from __future__ import annotations

from typing import Any

from tests.golden.families_maker.case import Case
from tests.golden.families_maker.decoders import decoder


def gemma(**sizes: Any) -> dict[str, Any]:
    own = {
        "attention_bias": False,
        "head_dim": 16,
        # As first published: the exact GELU is written, the approximate one is meant.
        "hidden_act": "gelu",
        "pad_token_id": 0,
        "tie_word_embeddings": True,
    }
    return decoder("GemmaForCausalLM", "gemma", **own | sizes)


def gemma2(**sizes: Any) -> dict[str, Any]:
    own = {
        "attention_bias": False,
        "attn_logit_softcapping": 6.0,
        "cache_implementation": "hybrid",
        "final_logit_softcapping": 9.0,
        "head_dim": 10,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "num_hidden_layers": 3,
        "pad_token_id": 0,
        "query_pre_attn_scalar": 20,
        "sliding_window": 8,
        "tie_word_embeddings": True,
    }
    return decoder("Gemma2ForCausalLM", "gemma2", **own | sizes)


def gemma3(**sizes: Any) -> dict[str, Any]:
    own = {
        "attention_bias": False,
        "attn_logit_softcapping": None,
        "cache_implementation": "hybrid",
        "final_logit_softcapping": None,
        "head_dim": 12,
        "hidden_activation": "gelu_pytorch_tanh",
        "num_hidden_layers": 4,
        "pad_token_id": 0,
        "query_pre_attn_scalar": 20,
        "rope_local_base_freq": 100.0,
        "rope_theta": 1000000,
        "sliding_window": 8,
        "sliding_window_pattern": 3,
        "tie_word_embeddings": True,
    }
    config = decoder("Gemma3ForCausalLM", "gemma3_text", **own | sizes)
    del config["hidden_act"]
    return config


def gemma3_by_layer_types() -> dict[str, Any]:
    """As the 270M is published: the layers are listed, and the pattern is for information."""
    config = gemma3(num_key_value_heads=1, query_pre_attn_scalar=12)
    del config["sliding_window_pattern"]
    local, whole = "sliding_attention", "full_attention"
    return config | {
        "_sliding_window_pattern": 6,
        "layer_types": [local, whole, local, whole],
        "use_bidirectional_attention": False,
    }


def gemma3_rope_parameters() -> dict[str, Any]:
    """As transformers 5 writes it: positions per kind of layer."""
    config = gemma3_by_layer_types() | {"dtype": "bfloat16", "transformers_version": "5.23.0"}
    for key in ("rope_theta", "rope_scaling", "rope_local_base_freq", "torch_dtype"):
        del config[key]
    return config | {"rope_parameters": _rope(1000000.0, 100.0)}


def _rope(whole: float, local: float) -> dict[str, Any]:
    return {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": whole},
        "sliding_attention": {"rope_type": "default", "rope_theta": local},
    }


def gemma3_with_images() -> dict[str, Any]:
    """As the 4B and larger are published: a text model inside, its usual values left out."""
    usual = (
        "rope_theta",
        "rope_local_base_freq",
        "sliding_window_pattern",
        "query_pre_attn_scalar",
    )
    scaling = {"factor": 8.0, "rope_type": "linear"}
    text = gemma3(num_hidden_layers=6, rope_scaling=scaling, tie_word_embeddings=None)
    vision = {
        "hidden_size": 16,
        "image_size": 28,
        "intermediate_size": 24,
        "model_type": "siglip_vision_model",
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "patch_size": 14,
        "vision_use_head": False,
    }
    return {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "boi_token_index": 90,
        "eoi_token_index": 91,
        "eos_token_id": [1, 96],
        "image_token_index": 96,
        "initializer_range": 0.02,
        "mm_tokens_per_image": 4,
        "model_type": "gemma3",
        "text_config": {
            key: value for key, value in text.items() if key not in usual and value is not None
        },
        "torch_dtype": "bfloat16",
        "transformers_version": "4.50.0.dev0",
        "vision_config": vision,
    }


def published_tower(name: str) -> str:
    """What sees images lies one part deeper in the published files."""
    return name.replace("vision_tower.", "vision_tower.vision_model.")


ALL_LOCAL = ["sliding_attention"] * 4

CASES = [
    Case(name="gemma", config=gemma(num_key_value_heads=4)),
    Case(
        name="gemma_mqa",
        config=gemma(
            num_key_value_heads=1,
            hidden_size=40,
            head_dim=12,
            hidden_act="gelu_pytorch_tanh",
            hidden_activation="gelu_pytorch_tanh",
        ),
    ),
    Case(
        name="gemma2",
        config=gemma2(),
        tokens=21,
        without={
            "cap of attention": {"attn_logit_softcapping": None},
            "cap of logits": {"final_logit_softcapping": None},
            "window": {"sliding_window": 21},
            "scale": {"query_pre_attn_scalar": 10},
        },
    ),
    Case(
        name="gemma2_mqa",
        config=gemma2(
            num_key_value_heads=1, head_dim=16, query_pre_attn_scalar=12, sliding_window=20
        ),
        tokens=21,  # one more than the window
        without={"window": {"sliding_window": 21}},
    ),
    Case(
        name="gemma3",
        config=gemma3(),
        tokens=21,
        without={
            "window": {"sliding_window": 21},
            "pattern": {"sliding_window_pattern": 2},
            "local base": {"rope_local_base_freq": 1000000.0},
            "scale": {"query_pre_attn_scalar": 12},
        },
    ),
    Case(
        name="gemma3_linear",  # as the 4B and larger: stretched positions in the global layers
        config=gemma3(
            rope_scaling={"factor": 8.0, "rope_type": "linear"}, rope_theta=10000.0, head_dim=10
        ),
        tokens=40,
        without={"linear": {"rope_scaling": None}},
    ),
    Case(
        name="gemma3_layer_types",
        config=gemma3_by_layer_types(),
        tokens=21,
        without={"global layers": {"layer_types": ALL_LOCAL}},
    ),
    Case(
        name="gemma3_with_images",
        config=gemma3_with_images(),
        tokens=21,
        published=published_tower,
    ),
    Case(
        name="gemma3_caps",  # the cap of attention is stored and applied nowhere
        config=gemma3(attn_logit_softcapping=1.0, final_logit_softcapping=2.0),
        tokens=21,
        without={"cap of logits": {"final_logit_softcapping": None}},
    ),
    Case(
        name="gemma3_rope_parameters",
        config=gemma3_rope_parameters(),
        tokens=21,
        without={"bases": {"rope_parameters": _rope(100.0, 100.0)}},
    ),
]
