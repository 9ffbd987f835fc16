"""The grid of Mixtral, Qwen3-MoE and DeepSeek-V3: decoders with routed experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.golden.families_maker.case import Case, Shapes
from tests.golden.families_maker.decoders import decoder, new_rope


def mixtral(**sizes: Any) -> dict[str, Any]:
    own = {
        "num_experts_per_tok": 2,
        "num_local_experts": 4,
        "output_router_logits": False,
        "rms_norm_eps": 1e-05,
        "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.02,
        "sliding_window": None,
    }
    return decoder("MixtralForCausalLM", "mixtral", **own | sizes)


def qwen3_moe(**sizes: Any) -> dict[str, Any]:
    own = {
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "head_dim": 10,
        "max_window_layers": 48,
        "mlp_only_layers": [],
        "moe_intermediate_size": 24,
        "norm_topk_prob": True,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "output_router_logits": False,
        "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.001,
        "sliding_window": None,
        "use_sliding_window": False,
    }
    return decoder("Qwen3MoeForCausalLM", "qwen3_moe", **own | sizes)


def deepseek_v3(**sizes: Any) -> dict[str, Any]:
    own = {
        "attention_bias": False,
        "aux_loss_alpha": 0.001,
        "ep_size": 1,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 16,
        "moe_intermediate_size": 24,
        "moe_layer_freq": 1,
        "n_group": 4,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_experts_per_tok": 3,
        "num_hidden_layers": 3,
        "num_key_value_heads": 4,
        "num_nextn_predict_layers": 1,
        "pretraining_tp": 1,
        "q_lora_rank": 20,
        "qk_nope_head_dim": 10,
        "qk_rope_head_dim": 8,
        "rope_scaling": YARN,
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "seq_aux": True,
        "topk_group": 2,
        "topk_method": "noaux_tc",
        "v_head_dim": 12,
    }
    return decoder("DeepseekV3ForCausalLM", "deepseek_v3", **own | sizes)


def deepseek_v32(**sizes: Any) -> dict[str, Any]:
    own = {
        "architectures": ["DeepseekV32ForCausalLM"],
        "index_head_dim": 14,
        "index_n_heads": 9,  # so many that no two tokens have a score of zero
        "index_topk": 7,
        "model_type": "deepseek_v32",
    }
    return deepseek_v3() | own | sizes


def gpt_oss(**sizes: Any) -> dict[str, Any]:
    own = {
        "attention_bias": True,
        "experts_per_token": 2,
        "head_dim": 10,
        "initial_context_length": 16,
        "layer_types": ["sliding_attention", "full_attention"],
        "num_experts_per_tok": 2,
        "num_local_experts": 6,
        "output_router_logits": False,
        "rms_norm_eps": 1e-05,
        "rope_scaling": OSS_YARN,
        "rope_theta": 150000.0,
        "router_aux_loss_coef": 0.9,
        "sliding_window": 8,
        "swiglu_limit": 0.9,
    }
    return decoder("GptOssForCausalLM", "gpt_oss", **own | sizes)


def next_token_layer(config: Mapping[str, Any]) -> Shapes:
    """The layer after the last, which the published files hold to guess one token further."""
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


YARN = {
    "beta_fast": 32,
    "beta_slow": 1,
    "factor": 4,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 16,
    "type": "yarn",
}

OSS_YARN = {
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "factor": 8.0,
    "original_max_position_embeddings": 16,
    "rope_type": "yarn",
    "truncate": False,
}

CASES = [
    Case(
        name="gpt_oss",
        config=gpt_oss(rope_theta=100.0),
        tokens=21,
        without={
            "window": {"layer_types": ["full_attention"] * 2},
            "clamp": {"swiglu_limit": 7.0},
            "yarn": {"rope_scaling": None},
            "steps of the rope": {"rope_scaling": OSS_YARN | {"truncate": True}},
        },
    ),
    Case(
        name="gpt_oss_no_layer_types",
        config={
            key: value
            for key, value in gpt_oss(
                num_hidden_layers=3,
                num_key_value_heads=1,
                attention_bias=False,
                tie_word_embeddings=True,
                swiglu_limit=1.5,
                swiglu_alpha=1.1,
            ).items()
            if key not in ("layer_types", "experts_per_token", "initial_context_length")
        },
        tokens=21,
        without={"steepness": {"swiglu_alpha": 1.702}, "clamp": {"swiglu_limit": 7.0}},
    ),
    Case(name="mixtral", config=mixtral(), without={"second": {"num_experts_per_tok": 1}}),
    Case(
        name="mixtral_window",
        config=mixtral(sliding_window=8, num_key_value_heads=1, num_local_experts=6, head_dim=10),
        tokens=21,
        without={"window": {"sliding_window": None}},
    ),
    Case(
        name="qwen3_moe",
        config=qwen3_moe(),
        without={"weights that add up to one": {"norm_topk_prob": False}},
    ),
    Case(
        name="qwen3_moe_sparse_step",
        config=qwen3_moe(
            norm_topk_prob=False,
            decoder_sparse_step=2,
            num_hidden_layers=4,
            tie_word_embeddings=True,
        ),
        without={"weights as they are": {"norm_topk_prob": True}},
    ),
    Case(
        name="qwen3_moe_dense_layers",
        config=new_rope(qwen3_moe(mlp_only_layers=[1], num_hidden_layers=3, num_experts_per_tok=3)),
        without={"weights that add up to one": {"norm_topk_prob": False}},
    ),
    Case(
        name="deepseek_v3",
        config=deepseek_v3(),
        spare=next_token_layer,
        without={
            "yarn": {"rope_scaling": None},
            "mscale": {"rope_scaling": YARN | {"mscale": 0.0, "mscale_all_dim": 0.0}},
            "groups": {"topk_group": 4},
            "scaling": {"routed_scaling_factor": 1.0},
            "weights that add up to one": {"norm_topk_prob": False},
        },
    ),
    Case(
        name="deepseek_v32",
        config=deepseek_v32(),
        without={
            "choice": {"index_topk": 64},
            "another count": {"index_topk": 9},
            "yarn": {"rope_scaling": None},
            "groups": {"topk_group": 4},
        },
    ),
    Case(
        name="deepseek_v32_biased",  # biases, a rope as transformers 5 writes it, kinds of layers
        config=new_rope(
            deepseek_v32(
                attention_bias=True,
                index_head_dim=8,
                index_topk=12,
                layer_types=["indexed_attention"] * 2,
                mlp_layer_types=["sparse", "dense"],
                num_hidden_layers=2,
                num_nextn_predict_layers=0,
                rope_scaling=None,
                rope_theta=5000.0,
            )
        ),
        without={"choice": {"index_topk": 64}},
    ),
    Case(
        name="deepseek_v3_plain_queries",  # as the small ones: no low-rank queries, one group
        config=deepseek_v3(
            q_lora_rank=None,
            n_group=1,
            topk_group=1,
            n_shared_experts=2,
            num_hidden_layers=2,
            num_nextn_predict_layers=0,
            norm_topk_prob=False,
            rope_scaling=None,
            routed_scaling_factor=1.5,
        ),
        without={"weights as they are": {"norm_topk_prob": True}},
    ),
    Case(
        name="deepseek_v3_mscale",  # two different scales, and biases
        config=deepseek_v3(
            rope_scaling=YARN | {"mscale": 1.0, "mscale_all_dim": 0.5, "factor": 8},
            first_k_dense_replace=0,
            num_hidden_layers=2,
            num_nextn_predict_layers=0,
            attention_bias=True,
        ),
        without={"mscale": {"rope_scaling": YARN | {"factor": 8}}},
    ),
]
