"""Decoders whose feed-forward layers are dense: Llama and those after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.tools.golden.common import Shapes
from tests.tools.golden.families.case import Case

FULL, SLIDING = "full_attention", "sliding_attention"


def inverse_frequencies(config: Mapping[str, Any]) -> Shapes:
    """What the first exporters of Llama stored per layer."""
    half = config["hidden_size"] // config["num_attention_heads"] // 2
    return {
        f"model.layers.{i}.self_attn.rotary_emb.inv_freq": (half,)
        for i in range(config["num_hidden_layers"])
    }


CASES = [
    Case("llama_tied"),
    Case("llama_untied_mqa", without={"theta": {"rope_theta": 10000.0}}),
    # As Llama 1: no kv heads in the file, frequencies stored.
    Case("llama_all_heads", spare=inverse_frequencies),
    Case("llama_llama3_biases", without={"llama3": {"rope_scaling": None}}),
    Case("llama_linear", without={"linear": {"rope_scaling": None}}),
    Case(
        "llama_yarn",
        without={
            "yarn": {"rope_scaling": None},
            "attention_factor": {"rope_scaling.attention_factor": 1.0},
        },
    ),
    Case(
        "llama_rope_parameters",
        without={"llama3": {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}},
    ),
    Case(
        "mistral_window",
        tokens=21,
        without={"window": {"sliding_window": None}, "width": {"sliding_window": 7}},
    ),
    # The last token is the first that does not see the first.
    Case("mistral_window_of_the_prompt", tokens=22, without={"window": {"sliding_window": 22}}),
    Case("mistral_no_window", without={"all": {"sliding_window": 8}}),
    Case("qwen2_tied"),
    Case("qwen2_untied_mqa"),
    Case(
        "qwen2_window",
        tokens=21,
        without={
            "window": {"use_sliding_window": False},
            "from a layer on": {"max_window_layers": 0},
        },
    ),
    # As most are published: a width, and no use of it.
    Case("qwen2_window_unused", tokens=21, without={"all": {"use_sliding_window": True}}),
    Case("qwen2_yarn", without={"yarn": {"rope_scaling": None}}),
    Case("qwen3_tied"),
    Case("qwen3_untied_mqa"),
    Case("qwen3_biases", without={"yarn": {"rope_scaling": None}}),
    Case("qwen3_rope_parameters"),
    Case("olmo2"),
    Case("olmo2_grouped"),
    Case("olmo2_tied"),
    Case("phi3"),
    Case("phi3_window", tokens=21, without={"window": {"sliding_window": None}}),
    # Within the original context, though served with a longer one.
    Case(
        "phi3_longrope_short",
        without={
            "longrope": {"rope_scaling": None},
            "short": {"original_max_position_embeddings": 23},
        },
    ),
    Case(
        "phi3_longrope_long",
        without={
            "longrope": {"rope_scaling": None},
            "long": {"original_max_position_embeddings": 64},
        },
    ),
    Case("phi3_partial_tied", without={"longrope": {"rope_scaling": None}}),  # as Phi-4 mini
    Case("phi3_partial", without={"partial": {"partial_rotary_factor": 1.0}}),
    Case("apertus", without={"llama3": {"rope_scaling": None}}),
    Case("apertus_tied"),
    Case("arcee", without={"yarn": {"rope_scaling": None}, "squared": {"hidden_act": "relu"}}),
    Case("arcee_biases"),
    Case("cohere", without={"logits": {"logit_scale": 1.0}}),
    Case("cohere_normed_heads", without={"logits": {"logit_scale": 1.0}}),  # as Command R+
    Case("cohere_untied", without={"yarn": {"rope_scaling": None}}),
    Case(
        "cohere2",
        tokens=21,
        without={
            "window": {"sliding_window": 21},
            "the layer without rope": {"sliding_window": 21, "sliding_window_pattern": 5},
        },
    ),
    Case("cohere2_layer_types", tokens=21, without={"kinds": {"layer_types": [SLIDING] * 4}}),
    Case("cwm", tokens=21, without={"window": {"sliding_window": 21}}),
    Case("cwm_defaults", tokens=21),
    Case("ernie4_5", without={"theta": {"rope_theta": 100.0}}),
    Case("ernie4_5_biases"),
    Case("ernie4_5_rope_parameters"),
    Case(
        "exaone4",
        tokens=21,
        without={
            "window": {"sliding_window": 21},
            "the layer without rope": {"layer_types": [SLIDING] * 4, "sliding_window": 21},
        },
    ),
    # As the 1.2B: no windows, all layers rotate, tied, stretched.
    Case("exaone4_small", without={"llama3": {"rope_scaling": None}}),
    Case("exaone4_pattern", tokens=21, without={"pattern": {"sliding_window_pattern": 4}}),
    Case("glm", without={"partial": {"partial_rotary_factor": 1.0}}),
    # All of a head rotates, and the head is tied.
    Case("glm_edge", without={"all": {"partial_rotary_factor": 0.6}}),
    Case("glm_rope_parameters"),
    Case("glm4", without={"partial": {"partial_rotary_factor": 1.0}}),
    Case("glm4_yarn", without={"yarn": {"rope_scaling": None}}),
    Case(
        "granite_swa",
        without={
            "window": {"sliding_window": 64},
            "bases": {"layer_rope_theta": [10000.0] * 4},
            "layers": {"residual_multiplier": 1.0},
        },
    ),
    # Layers in the usual order, which all rotate alike.
    Case("granite_swa_biases", without={"window": {"sliding_window": 64}}),
    Case(
        "granite",
        without={
            "scores": {"attention_multiplier": 0.5},
            "embeddings": {"embedding_multiplier": 1.0},
            "logits": {"logits_scaling": 1.0},
            "layers": {"residual_multiplier": 1.0},
        },
    ),
    Case("granite_biases", without={"layers": {"residual_multiplier": 1.0}}),
    # Its multipliers are left out.
    Case("granite_rope_parameters", without={"scores": {"attention_multiplier": 1.0}}),
    Case("helium"),
    Case("helium_biases"),
    Case("hunyuan", tokens=40, without={"alpha": {"rope_scaling.alpha": 2.0}}),
    Case("hunyuan_biases"),
    Case("hunyuan_rope_parameters", tokens=40),
    Case("ministral_layer_types", tokens=21, without={"kinds": {"layer_types": [SLIDING] * 3}}),
    Case("ministral", tokens=21, without={"window": {"sliding_window": 21}}),
    Case(
        "ministral3",
        without={
            "growth": {"rope_parameters.llama_4_scaling_beta": 0.0},
            "yarn": {"rope_parameters.rope_type": "default", "rope_parameters.type": "default"},
        },
    ),
    # Two different scales, too.
    Case("ministral3_window", tokens=40, without={"window": {"sliding_window": None}}),
    Case("mistral3_with_images"),  # as Mistral Small 3.1
    Case("mistral3_with_ministral3"),
    # Stretched positions, in the last layer only.
    Case(
        "olmo3",
        tokens=21,
        without={
            "window": {"sliding_window": 21},
            "yarn": {"rope_scaling": None},
            "kinds": {"layer_types": [SLIDING, FULL, SLIDING, FULL]},
        },
    ),
    # Grouped heads; nothing says that three of four layers slide.
    Case("olmo3_usual_layers", tokens=21, without={"layers": {"layer_types": [SLIDING] * 4}}),
    # As transformers 5 writes it: positions per kind of layer.
    Case(
        "olmo3_by_kind",
        tokens=21,
        without={"bases": {"rope_parameters.sliding_attention.rope_theta": 1000000.0}},
    ),
    Case("phi", without={"partial": {"partial_rotary_factor": 1.0}}),
    Case("phi_normed_heads", without={"partial": {"partial_rotary_factor": 1.0}}),
    Case("phi_rope_parameters"),
    Case("seed_oss"),
    Case("seed_oss_biases"),
    Case("seed_oss_linear", without={"linear": {"rope_scaling": None}}),
    Case(
        "smollm3",
        without={
            "layers without rope": {"no_rope_layers": [1] * 4},
            "theta": {"rope_theta": 10000.0},
        },
    ),
    # Biases too, an odd head, one kv head, an own output head.
    Case("smollm3_interval", without={"interval": {"no_rope_layer_interval": 4}}),
    # A window where there is no rope.
    Case("smollm3_window", tokens=21, without={"window": {"use_sliding_window": False}}),
    Case(
        "smollm3_yarn",
        without={"yarn": {"rope_parameters": {"rope_type": "default", "rope_theta": 5000000.0}}},
    ),
    # As published: the head is tied, and nothing says so.
    Case("starcoder2", tokens=21, without={"window": {"sliding_window": None}}),
    Case("starcoder2_unbiased", without={"tanh": {"hidden_act": "relu"}}),
    Case("starcoder2_rope_parameters", tokens=21, without={"window": {"sliding_window": 21}}),
    Case("youtu", without={"theta": {"rope_theta": 10000.0}}),
    Case(
        "youtu_plain_queries",
        without={"halves": {"rope_interleave": True}, "yarn": {"rope_scaling": None}},
    ),
    Case(
        "hyperclovax",
        without={
            "attention": {"attention_multiplier": 0.4},
            "embedding": {"embedding_multiplier": 1.0},
            "logits": {"logits_scaling": 1.0},
            "residual": {"residual_multiplier": 1.0},
        },
    ),
    Case("hyperclovax_plain", without={"theta": {"rope_parameters.rope_theta": 10000.0}}),
    Case("iquestcoder", without={"theta": {"rope_theta": 10000.0}}),
]
