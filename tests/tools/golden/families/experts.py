"""Decoders with routed experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.tools.golden.common import Shapes
from tests.tools.golden.families.case import Case


def next_token_layer(config: Mapping[str, Any]) -> Shapes:
    """The layer after the last, which the published files hold to draft one token further."""
    c, prefix = config, f"model.layers.{config['num_hidden_layers']}"
    width, heads = c["hidden_size"], c["num_attention_heads"]
    nope, rope, value = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    shapes: Shapes = {
        "embed_tokens.weight": (c["vocab_size"], width),
        "enorm.weight": (width,),
        "hnorm.weight": (width,),
        "eh_proj.weight": (width, 2 * width),
        "shared_head.norm.weight": (width,),
        "shared_head.head.weight": (c["vocab_size"], width),
        "input_layernorm.weight": (width,),
        "post_attention_layernorm.weight": (width,),
        "mlp.gate.weight": (c["n_routed_experts"], width),
        "mlp.gate.e_score_correction_bias": (c["n_routed_experts"],),
        "self_attn.q_a_proj.weight": (c["q_lora_rank"], width),
        "self_attn.q_a_layernorm.weight": (c["q_lora_rank"],),
        "self_attn.q_b_proj.weight": (heads * (nope + rope), c["q_lora_rank"]),
        "self_attn.kv_a_proj_with_mqa.weight": (c["kv_lora_rank"] + rope, width),
        "self_attn.kv_a_layernorm.weight": (c["kv_lora_rank"],),
        "self_attn.kv_b_proj.weight": (heads * (nope + value), c["kv_lora_rank"]),
        "self_attn.o_proj.weight": (width, heads * value),
    }
    for part in ["shared_experts", *(f"experts.{e}" for e in range(c["n_routed_experts"]))]:
        shapes |= _gated(f"mlp.{part}", width, c["moe_intermediate_size"])
    return {f"{prefix}.{name}": shape for name, shape in shapes.items()}


def _gated(prefix: str, width: int, ffw: int) -> Shapes:
    up: Shapes = {f"{prefix}.{name}_proj.weight": (ffw, width) for name in ("gate", "up")}
    return up | {f"{prefix}.down_proj.weight": (width, ffw)}


CASES = [
    Case(
        "gpt_oss",
        tokens=21,
        without={
            "window": {"layer_types": ["full_attention"] * 2},
            "clamp": {"swiglu_limit": 7.0},
            "yarn": {"rope_scaling": None},
            "steps of the rope": {"rope_scaling.truncate": True},
        },
    ),
    Case(
        "gpt_oss_no_layer_types",
        tokens=21,
        without={"steepness": {"swiglu_alpha": 1.702}, "clamp": {"swiglu_limit": 7.0}},
    ),
    Case("mixtral", without={"second": {"num_experts_per_tok": 1}}),
    Case("mixtral_window", tokens=21, without={"window": {"sliding_window": None}}),
    Case("qwen3_moe", without={"weights that add up to one": {"norm_topk_prob": False}}),
    Case("qwen3_moe_sparse_step", without={"weights as they are": {"norm_topk_prob": True}}),
    Case(
        "qwen3_moe_dense_layers", without={"weights that add up to one": {"norm_topk_prob": False}}
    ),
    Case(
        "deepseek_v3",
        without={
            "yarn": {"rope_scaling": None},
            "mscale": {"rope_scaling.mscale": 0.0, "rope_scaling.mscale_all_dim": 0.0},
            "groups": {"topk_group": 4},
            "scaling": {"routed_scaling_factor": 1.0},
            "weights that add up to one": {"norm_topk_prob": False},
        },
        spare=next_token_layer,
    ),
    # Indexers of so many heads that no two tokens have a score of zero, here and in glm_moe_dsa.
    Case(
        "deepseek_v32",
        without={
            "choice": {"index_topk": 64},
            "another count": {"index_topk": 9},
            "yarn": {"rope_scaling": None},
            "groups": {"topk_group": 4},
        },
    ),
    # Biases, a rope as transformers 5 writes it, kinds of layers.
    Case("deepseek_v32_biased", without={"choice": {"index_topk": 64}}),
    # As the small ones: no low-rank queries, one group.
    Case("deepseek_v3_plain_queries", without={"weights as they are": {"norm_topk_prob": True}}),
    # Two different scales, and biases.
    Case("deepseek_v3_mscale", without={"mscale": {"rope_scaling.mscale_all_dim": 1.0}}),
    Case("hy_v3", without={"scaling": {"router_scaling_factor": 1.0}}),
    Case("hy_v3_biases"),
    Case(
        "cohere2_moe",
        without={
            "average": {"shared_expert_combination_strategy": "sum"},
            "positions of the first": {"prefix_dense_sliding_window_pattern": 2},
            "sigmoid": {"expert_selection_fn": "softmax"},
            "window": {"sliding_window": 64},
        },
    ),
    # An RMS norm, kinds of layers by name, a sum.
    Case("cohere2_moe_by_shares", without={"window": {"sliding_window": 64}}),
    Case(
        "mistral4",
        without={
            "growth": {"rope_parameters.llama_4_scaling_beta": 0.0},
            "normalised": {"norm_topk_prob": False},
            "scaling": {"routed_scaling_factor": 1.0},
        },
    ),
    Case("mistral4_dense_layer", without={"growth": {"rope_parameters.llama_4_scaling_beta": 0.0}}),
    Case("glm_moe_dsa", without={"choice": {"index_topk": 64}, "another count": {"index_topk": 9}}),
    # As the first checkpoints: every layer has an indexer, and nothing says so.
    Case("glm_moe_dsa_of_each", without={"choice": {"index_topk": 64}}),
    Case("glm_moe_dsa_every_second", without={"choice": {"index_topk": 64}}),
    Case(
        "dots1",
        without={
            "scaling": {"routed_scaling_factor": 1.0},
            "normalised": {"norm_topk_prob": False},
        },
        known_as={"scoring_func": None},
    ),
    Case("dots1_window", tokens=21, without={"window": {"sliding_window": 21}}),
    Case("solar_open", without={"scaling": {"routed_scaling_factor": 1.0}}),
    Case("solar_open_biased_groups"),
    Case(
        "exaone_moe",
        tokens=21,
        without={"window": {"sliding_window": 21}, "scaling": {"routed_scaling_factor": 1.0}},
    ),
    Case("exaone_moe_pattern", tokens=21),
    Case("glm4_moe_lite", without={"scaling": {"routed_scaling_factor": 1.0}}),
    Case("deepseek_v2", tokens=40, without={"yarn": {"rope_scaling": None}}),
    Case("deepseek_v2_groups", tokens=12, without={"scaling": {"routed_scaling_factor": 1.0}}),
    Case("hunyuan_moe", tokens=21, without={"alpha": {"rope_scaling.alpha": 2.0}}),
    Case("hunyuan_moe_biased_untied", tokens=21),
    Case(
        "phimoe",
        tokens=21,
        without={"window": {"sliding_window": 21}, "reach": {"router_jitter_noise": 0.01}},
    ),
    Case("phimoe_unbiased", tokens=21),
    Case(
        "glm4_moe",
        without={
            "part of a head": {"partial_rotary_factor": 1.0},
            "scaling": {"routed_scaling_factor": 1.0},
        },
    ),
    Case("glm4_moe_air"),  # no head norms; as transformers 5 writes it
    Case(
        "kimi_k2",
        without={"yarn": {"rope_scaling": None}, "scaling": {"routed_scaling_factor": 1.0}},
        known_as={"model_type": "deepseek_v3"},  # transformers knows its layout by this name
    ),
    Case("ernie4_5_moe"),
    Case("ernie4_5_moe_some_layers"),
    Case("minimax_m2", without={"part of a head": {"rotary_dim": 12}}),
    Case(
        "llama4",
        tokens=21,
        without={
            "chunks": {"attention_chunk_size": 64},
            "temperature": {"attn_temperature_tuning": False},
            "norms": {"use_qk_norm": False},
            "layers that do not rotate": {"no_rope_layers": [1, 1]},
        },
    ),
    # As the large one: dense layers between, no norms.
    Case("llama4_interleaved", tokens=21, without={"chunks": {"attention_chunk_size": 64}}),
    Case(
        "granitemoe",
        without={
            "attention": {"attention_multiplier": 0.4},
            "embedding": {"embedding_multiplier": 1.0},
            "logits": {"logits_scaling": 1.0},
            "residual": {"residual_multiplier": 1.0},
        },
    ),
    Case("olmoe", without={"weights as they are": {"norm_topk_prob": True}}),
    Case("qwen2_moe", without={"weights as they are": {"norm_topk_prob": True}}),
    Case(
        "qwen2_moe_dense_layers", without={"weights that add up to one": {"norm_topk_prob": False}}
    ),
    Case(
        "mimo_v2",
        tokens=21,
        without={
            "window": {"sliding_window": 64},
            "size of values": {"attention_value_scale": 1.0},
            "bases": {"rope_parameters.full_attention.rope_theta": 10000.0},
            "part that rotates": {"rope_parameters.sliding_attention.partial_rotary_factor": 0.334},
            "scaling": {"routed_scaling_factor": 1.0},
        },
    ),
    Case(
        "mimo_v2_published",
        tokens=21,
        without={
            "window": {"sliding_window_size": 64},
            "groups": {"topk_group": 4},
        },
    ),
    Case(
        "laguna",
        tokens=21,
        without={
            "window": {"sliding_window": 64},
            "yarn": {"rope_parameters.full_attention.factor": 1.0},
            "part that rotates": {"rope_parameters.full_attention.partial_rotary_factor": 1.0},
            "scaling": {"moe_routed_scaling_factor": 1.0},
            "cap of the router": {"moe_router_logit_softcapping": 0.0},
        },
    ),
    Case("laguna_by_elements"),
    Case(
        "afmoe",
        tokens=21,
        without={
            "window": {"sliding_window": 64},
            "layers that do not rotate": {"layer_types": ["sliding_attention"] * 4},
            "embedding": {"mup_enabled": False},
            "scaling": {"route_scale": 1.0},
        },
    ),
    Case("afmoe_tied", tokens=21, without={"theta": {"rope_parameters.rope_theta": 10000.0}}),
    Case(
        "mellum",
        tokens=21,
        without={
            "window": {"sliding_window": 64},
            "yarn": {"rope_parameters.full_attention.factor": 1.0},
            "weights that add up to one": {"norm_topk_prob": False},
        },
    ),
    Case("mellum_dense_layer", without={"weights as they are": {"norm_topk_prob": True}}),
    Case(
        "flint",
        tokens=21,
        without={"window": {"sliding_window": 64}, "theta": {"rope_theta": 500000.0}},
    ),
    Case("flint_as_they_are", without={"weights as they are": {"norm_topk_prob": True}}),
    Case(
        "step3p7",
        tokens=21,
        without={
            "window": {"text_config.sliding_window": 64},
            "bound of experts": {"text_config.swiglu_limits": None},
            "bound of what every token uses": {"text_config.swiglu_limits_shared": None},
            "yarn": {"text_config.rope_scaling": None},
            "bases": {"text_config.rope_theta": [10000.0] * 5},
            "scaling": {"text_config.moe_router_scaling_factor": 1.0},
        },
    ),
    Case(
        "step3p7_saved",
        tokens=21,
        without={"scale": {"text_config.query_pre_attn_scalar": 16}},
    ),
    Case(
        "granitemoeshared",
        without={"residual": {"residual_multiplier": 1.0}, "logits": {"logits_scaling": 1.0}},
    ),
    Case(
        "granitemoe_swa",
        tokens=21,
        without={
            "window": {"sliding_window": 64},
            "layers that do not rotate": {"layer_rope_theta": [500000.0, 10000.0, 10000.0]},
            "residual": {"residual_multiplier": 1.0},
        },
    ),
    Case("granitemoe_swa_unshared", tokens=21, without={"window": {"sliding_window": 64}}),
    Case(
        "sarvam_mla",
        without={"yarn": {"rope_scaling": None}, "scaling": {"routed_scaling_factor": 1.0}},
    ),
    Case(
        "sarvam_moe",
        without={"groups": {"topk_group": 4}, "theta": {"rope_theta": 10000.0}},
    ),
    Case(
        "sarvam_moe_part",
        without={"part that rotates": {"rope_parameters.partial_rotary_factor": 1.0}},
    ),
    Case(
        "minimax_m3",
        tokens=23,
        without={
            "blocks": {"text_config.index_topk_blocks": 16},
            "the nearest": {"text_config.index_local_blocks": 0},
            "scaling": {"text_config.routed_scaling_factor": 1.0},
            "clamp": {"text_config.swiglu_limit": 7.0},
            "part that rotates": {"text_config.rope_parameters.partial_rotary_factor": 1.0},
        },
    ),
    Case(
        "minimax_m3_published",
        tokens=23,
        without={"blocks": {"text_config.sparse_attention_config.sparse_topk_blocks": 16}},
    ),
    Case(
        "hy_v4",
        without={
            "choice": {"index_topk": 64},
            "bound": {"swiglu_limit": 10.0},
            "magnitude": {"hc_magnitude": 2.0},
            "theta": {"rope_parameters.rope_theta": 100.0},
        },
    ),
    Case(
        "axk1",
        without={
            "yarn": {"rope_scaling": None},
            "groups": {"topk_group": 4},
            "scaling": {"routed_scaling_factor": 1.0},
        },
    ),
    # As published: routers without offsets, and a norm that the dense layer does not use.
    Case(
        "axk1_unbiased",
        without={"pairs": {"rope_interleave": True}},
        left_out=("gate.e_score_correction_bias",),
        spare=lambda config: {"model.layers.1.post_mlp_layernorm.weight": (config["hidden_size"],)},
    ),
    Case(
        "axk2",
        without={
            "choice": {"index_topk": 64},
            "another count": {"index_topk": 9},
            "scaling": {"routed_scaling_factor": 1.0},
        },
    ),
    # As the larger one: groups of experts. Biases, YaRN, tied.
    Case(
        "axk2_groups",
        without={
            "choice": {"index_topk": 64},
            "groups": {"topk_group": 4},
            "yarn": {"rope_parameters.factor": 1.0},
        },
    ),
    Case("hy_v4_biased", without={"yarn": {"rope_parameters.factor": 1.0}}),
    # A layer of each kind, as transformers writes them.
    Case(
        "dots3_note",
        without={
            "choice": {"text_config.index_topk": 64},
            "another count": {"text_config.index_topk": 6},
            "window": {"text_config.sliding_window": 64},
            "theta of windows": {
                "text_config.rope_parameters.sliding_attention.rope_theta": 10000.0
            },
            "groups": {"text_config.topk_group": 2},
            "scaling": {"text_config.routed_scaling_factor": 1.0},
        },
    ),
    Case(
        "dots3_note_published",
        without={"choice": {"index_topk": 64}, "window": {"sliding_window_size": 64}},
    ),
]
