"""The grid of later decoders with routed experts: GLM, Kimi, ERNIE, MiniMax, Llama 4 and others."""

from __future__ import annotations

from typing import Any

from tests.golden.families_maker.case import Case
from tests.golden.families_maker.decoders import LLAMA3, decoder, new_rope
from tests.golden.families_maker.dense.hunyuan import DYNAMIC
from tests.golden.families_maker.experts import deepseek_v3


def glm4_moe(**sizes: Any) -> dict[str, Any]:
    own = {
        "attention_bias": True,
        "first_k_dense_replace": 1,
        "head_dim": 12,
        "moe_intermediate_size": 24,
        "n_group": 1,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_experts_per_tok": 3,
        "num_nextn_predict_layers": 0,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-05,
        "rope_theta": 1000000,
        "routed_scaling_factor": 2.5,
        "topk_group": 1,
        "use_qk_norm": True,
    }
    return decoder("Glm4MoeForCausalLM", "glm4_moe", **own | sizes)


def ernie4_5_moe(**sizes: Any) -> dict[str, Any]:
    own = {
        "moe_capacity": [8, 8, 8],
        "moe_gate": "topk",
        "moe_intermediate_size": 24,
        "moe_k": 3,
        "moe_layer_interval": 1,
        "moe_layer_start_index": 1,
        "moe_num_experts": 8,
        "moe_num_shared_experts": 2,
        "moe_use_aux_free": True,
        "num_nextn_predict_layers": 0,
        "rms_norm_eps": 1e-05,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "use_bias": False,
    }
    return decoder("Ernie4_5_MoeForCausalLM", "ernie4_5_moe", **own | sizes)


def minimax_m2(**sizes: Any) -> dict[str, Any]:
    own = {
        "attn_type_list": [1, 1],
        "head_dim": 12,
        "layernorm_full_attention_beta": 1.0,
        "layernorm_linear_attention_beta": 1.0,
        "layernorm_mlp_beta": 1.0,
        "mlp_intermediate_size": 80,
        "mtp_transformer_layers": 1,
        "num_experts_per_tok": 3,
        "num_local_experts": 8,
        "num_mtp_modules": 3,
        "output_router_logits": False,
        "qk_norm_type": "per_layer",
        "rope_theta": 5000000,
        "rotary_dim": 6,
        "router_aux_loss_coef": 0.001,
        "router_jitter_noise": 0.0,
        "scoring_func": "sigmoid",
        "shared_intermediate_size": 0,
        "shared_moe_mode": "sigmoid",
        "sliding_window": None,
        "use_mtp": True,
        "use_qk_norm": True,
        "use_routing_bias": True,
    }
    return decoder("MiniMaxM2ForCausalLM", "minimax_m2", **own | sizes)


def llama4(**sizes: Any) -> dict[str, Any]:
    own = {
        "attention_bias": False,
        "attention_chunk_size": 8,
        "attn_scale": 0.5,
        "attn_temperature_tuning": True,
        "floor_scale": 4,
        "for_llm_compressor": False,
        "head_dim": 10,
        "interleave_moe_layer_step": 1,
        "intermediate_size": 24,
        "intermediate_size_mlp": 64,
        "no_rope_layers": [1, 0],
        "num_experts_per_tok": 1,
        "num_local_experts": 4,
        "output_router_logits": False,
        "rms_norm_eps": 1e-05,
        "rope_scaling": LLAMA3,
        "rope_theta": 500000.0,
        "router_aux_loss_coef": 0.001,
        "router_jitter_noise": 0.0,
        "use_qk_norm": True,
    }
    return decoder("Llama4ForCausalLM", "llama4_text", **own | sizes)


def granitemoe(**sizes: Any) -> dict[str, Any]:
    own = {
        "attention_bias": False,
        "attention_multiplier": 0.2,
        "embedding_multiplier": 3.0,
        "logits_scaling": 1.5,
        "num_experts_per_tok": 2,
        "num_local_experts": 6,
        "output_router_logits": False,
        "residual_multiplier": 0.7,
        "router_aux_loss_coef": 0.001,
        "tie_word_embeddings": True,
    }
    return decoder("GraniteMoeForCausalLM", "granitemoe", **own | sizes)


def olmoe(**sizes: Any) -> dict[str, Any]:
    own = {
        "attention_bias": False,
        "clip_qkv": None,
        "norm_topk_prob": False,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "output_router_logits": False,
        "rms_norm_eps": 1e-05,
        "router_aux_loss_coef": 0.01,
    }
    return decoder("OlmoeForCausalLM", "olmoe", **own | sizes)


def qwen2_moe(**sizes: Any) -> dict[str, Any]:
    own = {
        "decoder_sparse_step": 1,
        "max_window_layers": 21,
        "moe_intermediate_size": 24,
        "norm_topk_prob": False,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "output_router_logits": False,
        "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.001,
        "shared_expert_intermediate_size": 32,
        "sliding_window": 32768,
        "use_sliding_window": False,
    }
    return decoder("Qwen2MoeForCausalLM", "qwen2_moe", **own | sizes)


KIMI_YARN = {
    "beta_fast": 1.0,
    "beta_slow": 1.0,
    "factor": 4.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 16,
    "type": "yarn",
}


def hunyuan_moe(**sizes: Any) -> dict[str, Any]:
    own = {
        "attention_bias": False,
        "attention_head_dim": 12,
        "eod_token_id": 3,
        "head_dim": 12,
        "mlp_bias": False,
        "moe_drop_tokens": False,
        "moe_intermediate_size": [64, 64],
        "moe_layer_num_skipped": 0,
        "moe_topk": [3, 3],
        "norm_topk_prob": True,
        "num_experts": 8,
        "num_shared_expert": [1, 1],
        "rms_norm_eps": 1e-05,
        "rope_scaling": DYNAMIC,
        "tie_word_embeddings": True,
        "use_cla": False,
        "use_mixed_mlp_moe": True,
        "use_qk_norm": True,
    }
    return decoder("HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe", **own | sizes)


def phimoe(**sizes: Any) -> dict[str, Any]:
    own = {
        "attention_bias": True,
        "input_jitter_noise": 0.01,
        "lm_head_bias": True,
        "num_experts_per_tok": 2,
        "num_local_experts": 6,
        "original_max_position_embeddings": 64,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
            "long_mscale": 1.24,
            "original_max_position_embeddings": 64,
            "short_factor": [1.0, 1.1, 1.2, 1.5, 2.0, 3.0],
            "short_mscale": 1.24,
            "type": "longrope",
        },
        "router_jitter_noise": 0.2,
        "sliding_window": 8,
    }
    return decoder("PhimoeForCausalLM", "phimoe", **own | sizes)


def dots1(**sizes: Any) -> dict[str, Any]:
    own = {
        "attention_bias": False,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 24,
        "moe_layer_freq": 1,
        "n_routed_experts": 8,
        "n_shared_experts": 2,
        "norm_topk_prob": True,
        "num_experts_per_tok": 3,
        "routed_scaling_factor": 2.5,
        "scoring_func": "noaux_tc",
        "sliding_window": None,
    }
    return decoder("Dots1ForCausalLM", "dots1", **own | sizes)


def solar_open(**sizes: Any) -> dict[str, Any]:
    own = {
        "attention_bias": False,
        "head_dim": 10,
        "moe_intermediate_size": 24,
        "n_group": 1,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_experts_per_tok": 3,
        "partial_rotary_factor": 1.0,
        "rms_norm_eps": 1e-05,
        "routed_scaling_factor": 1.5,
        "topk_group": 1,
    }
    made = decoder("SolarOpenForCausalLM", "solar_open", **own | sizes)
    return {key: value for key, value in made.items() if key != "intermediate_size"}


def exaone_moe(**sizes: Any) -> dict[str, Any]:
    own = {
        "first_k_dense_replace": 1,
        "head_dim": 12,
        "is_moe_layer": [False, True],
        "layer_types": ["sliding_attention", "full_attention"],
        "mlp_layer_types": ["dense", "sparse"],
        "moe_intermediate_size": 24,
        "n_group": 1,
        "norm_topk_prob": True,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "num_shared_experts": 1,
        "rms_norm_eps": 1e-05,
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "sliding_window": 8,
        "sliding_window_pattern": "LLLG",
        "topk_group": 1,
        "topk_method": "noaux_tc",
    }
    return decoder("ExaoneMoeForCausalLM", "exaone_moe", **own | sizes)


def glm4_moe_lite(**sizes: Any) -> dict[str, Any]:
    own = {
        "attention_bias": False,
        "kv_lora_rank": 16,
        "mlp_layer_types": ["dense", "sparse"],
        "moe_intermediate_size": 24,
        "n_group": 1,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_experts_per_tok": 3,
        "num_key_value_heads": 4,
        "num_nextn_predict_layers": 0,
        "partial_rotary_factor": 1.0,
        "q_lora_rank": 20,
        "qk_nope_head_dim": 12,
        "qk_rope_head_dim": 8,
        "rms_norm_eps": 1e-05,
        "routed_scaling_factor": 1.8,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "v_head_dim": 10,
    }
    return decoder("Glm4MoeLiteForCausalLM", "glm4_moe_lite", **own | sizes)


def deepseek_v2(**sizes: Any) -> dict[str, Any]:
    own = {
        "attention_bias": False,
        "aux_loss_alpha": 0.001,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 16,
        "moe_intermediate_size": 24,
        "moe_layer_freq": 1,
        "n_group": 1,
        "n_routed_experts": 8,
        "n_shared_experts": 2,
        "norm_topk_prob": False,
        "num_experts_per_tok": 3,
        "num_key_value_heads": 4,
        "q_lora_rank": None,
        "qk_nope_head_dim": 12,
        "qk_rope_head_dim": 8,
        "rope_scaling": {
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 4,
            "mscale": 0.707,
            "mscale_all_dim": 0.707,
            "original_max_position_embeddings": 32,
            "type": "yarn",
        },
        "routed_scaling_factor": 1.0,
        "scoring_func": "softmax",
        "seq_aux": True,
        "topk_group": 1,
        "topk_method": "greedy",
        "v_head_dim": 10,
    }
    return decoder("DeepseekV2ForCausalLM", "deepseek_v2", **own | sizes)


def glm_moe_dsa(**sizes: Any) -> dict[str, Any]:
    own = {
        "index_head_dim": 14,
        "index_n_heads": 9,  # so many that no two tokens have a score of zero
        "index_topk": 7,
        "indexer_rope_interleave": True,
        "indexer_types": ["full", "shared", "full"],
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "num_hidden_layers": 3,
        "rope_interleave": True,
    }
    names = {"architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa"}
    return glm4_moe_lite(**own | sizes) | names


def glm_moe_dsa_of_each() -> dict[str, Any]:
    """As the first checkpoints: every layer has an indexer, and nothing says so."""
    made = glm_moe_dsa(
        attention_bias=True,
        index_head_dim=8,
        index_n_heads=15,
        index_topk=12,
        mlp_layer_types=["dense", "sparse"],
        num_hidden_layers=2,
    )
    del made["indexer_types"]
    return made


def glm_moe_dsa_every_second() -> dict[str, Any]:
    made = glm_moe_dsa(
        index_skip_topk_offset=1,
        index_topk_freq=2,
        mlp_layer_types=["dense", *["sparse"] * 3],
        num_hidden_layers=4,
    )
    del made["indexer_types"]
    return made


def mistral4(**sizes: Any) -> dict[str, Any]:
    own = {
        "first_k_dense_replace": 0,
        "rope_interleave": True,
        "rope_parameters": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 8.0,
            "llama_4_scaling_beta": 0.4,
            "max_position_embeddings": 128,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 9,
            "partial_rotary_factor": 0.4,
            "rope_theta": 10000.0,
            "type": "yarn",
        },
    }
    made = glm4_moe_lite(**own | sizes)
    for key in ("mlp_layer_types", "partial_rotary_factor", "rope_theta", "topk_method"):
        made.pop(key, None)
    return made | {"architectures": ["Mistral4ForCausalLM"], "model_type": "mistral4"}


def without_growth() -> dict[str, Any]:
    return {"rope_parameters": mistral4()["rope_parameters"] | {"llama_4_scaling_beta": 0.0}}


def cohere2_moe(**sizes: Any) -> dict[str, Any]:
    own = {
        "attention_bias": False,
        "expert_selection_fn": "sigmoid",
        "first_k_dense_replace": 1,
        "head_dim": 16,
        "layer_norm_eps": 1e-05,
        "logit_scale": 0.25,
        "norm_topk_prob": True,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 4,
        "num_shared_experts": 2,
        "prefix_dense_intermediate_size": 40,
        "prefix_dense_sliding_window_pattern": 1,
        "shared_expert_combination_strategy": "average",
        "sliding_window": 8,
        "sliding_window_pattern": 3,
        "tie_word_embeddings": True,
    }
    made = decoder("Cohere2MoeForCausalLM", "cohere2_moe", **own | sizes)
    del made["rms_norm_eps"]
    return made


def hy_v3(**sizes: Any) -> dict[str, Any]:
    own = {
        "attention_bias": False,
        "enable_moe_fp32_combine": True,
        "head_dim": 10,
        "mlp_layer_types": ["dense", "sparse"],
        "moe_intermediate_size": 24,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "num_shared_experts": 1,
        "router_scaling_factor": 1.8,
    }
    return decoder("HYV3ForCausalLM", "hy_v3", **own | sizes)


CASES = [
    Case(
        name="hy_v3",
        config=hy_v3(),
        without={"scaling": {"router_scaling_factor": 1.0}},
    ),
    Case(
        name="hy_v3_biases",
        config=hy_v3(
            attention_bias=True, mlp_layer_types=["sparse", "dense"], num_shared_experts=2
        ),
    ),
    Case(
        name="cohere2_moe",
        config=cohere2_moe(),
        without={
            "average": {"shared_expert_combination_strategy": "sum"},
            "positions of the first": {"prefix_dense_sliding_window_pattern": 2},
            "sigmoid": {"expert_selection_fn": "softmax"},
            "window": {"sliding_window": 64},
        },
    ),
    Case(
        name="cohere2_moe_by_shares",  # an RMS norm, kinds of layers by name, a sum
        config=cohere2_moe(
            expert_selection_fn="softmax",
            layer_types=["full_attention", "sliding_attention"],
            mlp_layer_types=["sparse", "dense"],
            num_hidden_layers=2,
            prefix_dense_intermediate_size=None,
            rms_norm_eps=1e-05,
            shared_expert_combination_strategy="sum",
            tie_word_embeddings=False,
        )
        | {"rms_norm_eps": 1e-05},
        without={"window": {"sliding_window": 64}},
    ),
    Case(
        name="mistral4",
        config=mistral4(),
        without={
            "growth": without_growth(),
            "normalised": {"norm_topk_prob": False},
            "scaling": {"routed_scaling_factor": 1.0},
        },
    ),
    Case(
        name="mistral4_dense_layer",
        config=mistral4(
            attention_bias=True,
            first_k_dense_replace=1,
            n_shared_experts=2,
            norm_topk_prob=False,
            q_lora_rank=None,
            rope_interleave=False,
        ),
        without={"growth": without_growth()},
    ),
    Case(
        name="glm_moe_dsa",
        config=glm_moe_dsa(),
        without={
            "choice": {"index_topk": 64},
            "another count": {"index_topk": 9},
        },
    ),
    Case(
        name="glm_moe_dsa_of_each",
        config=glm_moe_dsa_of_each(),
        without={"choice": {"index_topk": 64}},
    ),
    Case(
        name="glm_moe_dsa_every_second",
        config=glm_moe_dsa_every_second(),
        without={"choice": {"index_topk": 64}},
    ),
    Case(
        name="dots1",
        config=dots1(),
        known_as={"scoring_func": None},
        without={
            "scaling": {"routed_scaling_factor": 1.0},
            "normalised": {"norm_topk_prob": False},
        },
    ),
    Case(
        name="dots1_window",
        config=dots1(
            attention_bias=True,
            max_window_layers=1,
            num_key_value_heads=1,
            scoring_func=None,
            sliding_window=8,
            tie_word_embeddings=True,
        ),
        tokens=21,
        without={"window": {"sliding_window": 21}},
    ),
    Case(
        name="solar_open",
        config=solar_open(),
        without={"scaling": {"routed_scaling_factor": 1.0}},
    ),
    Case(
        name="solar_open_biased_groups",
        config=solar_open(attention_bias=True, n_group=4, n_shared_experts=2, topk_group=2),
    ),
    Case(
        name="exaone_moe",
        config=exaone_moe(),
        tokens=21,
        without={"window": {"sliding_window": 21}, "scaling": {"routed_scaling_factor": 1.0}},
    ),
    Case(
        name="exaone_moe_pattern",
        config={
            key: value
            for key, value in exaone_moe(
                num_hidden_layers=3, num_key_value_heads=1, sliding_window_pattern=2
            ).items()
            if key not in ("layer_types", "mlp_layer_types", "is_moe_layer")
        },
        tokens=21,
    ),
    Case(
        name="glm4_moe_lite",
        config=glm4_moe_lite(),
        without={"scaling": {"routed_scaling_factor": 1.0}},
    ),
    Case(
        name="deepseek_v2",
        config=deepseek_v2(),
        tokens=40,
        without={"yarn": {"rope_scaling": None}},
    ),
    Case(
        name="deepseek_v2_groups",
        config=deepseek_v2(
            n_group=4,
            q_lora_rank=20,
            rope_scaling=None,
            routed_scaling_factor=4.0,
            topk_group=2,
            topk_method="group_limited_greedy",
        ),
        tokens=12,
        without={"scaling": {"routed_scaling_factor": 1.0}},
    ),
    Case(
        name="hunyuan_moe",
        config=hunyuan_moe(),
        tokens=21,
        without={"alpha": {"rope_scaling": DYNAMIC | {"alpha": 2.0}}},
    ),
    Case(
        name="hunyuan_moe_biased_untied",
        config=hunyuan_moe(
            attention_bias=True,
            moe_topk=1,
            num_key_value_heads=1,
            rope_scaling=None,
            tie_word_embeddings=False,
        ),
        tokens=21,
    ),
    Case(
        name="phimoe",
        config=phimoe(),
        tokens=21,
        without={"window": {"sliding_window": 21}, "reach": {"router_jitter_noise": 0.01}},
    ),
    Case(
        name="phimoe_unbiased",
        config=phimoe(
            attention_bias=False, lm_head_bias=False, rope_scaling=None, sliding_window=None
        ),
        tokens=21,
    ),
    Case(
        name="glm4_moe",
        config=glm4_moe(),
        without={
            "part of a head": {"partial_rotary_factor": 1.0},
            "scaling": {"routed_scaling_factor": 1.0},
        },
    ),
    Case(
        name="glm4_moe_air",  # no head norms; as transformers 5 writes it
        config=new_rope(
            glm4_moe(
                use_qk_norm=False,
                routed_scaling_factor=1.0,
                n_shared_experts=2,
                num_key_value_heads=1,
            ),
            partial_rotary_factor=0.5,
        ),
    ),
    Case(
        name="kimi_k2",
        config=deepseek_v3(
            n_group=1,
            topk_group=1,
            num_nextn_predict_layers=0,
            rope_scaling=KIMI_YARN,
            rope_theta=50000.0,
            routed_scaling_factor=2.827,
        )
        | {"model_type": "kimi_k2"},
        known_as={"model_type": "deepseek_v3"},  # transformers knows its layout by this name
        without={"yarn": {"rope_scaling": None}, "scaling": {"routed_scaling_factor": 1.0}},
    ),
    Case(
        name="ernie4_5_moe",
        config=ernie4_5_moe(),
    ),
    Case(
        name="ernie4_5_moe_some_layers",
        config=ernie4_5_moe(
            tie_word_embeddings=False,
            num_hidden_layers=4,
            moe_layer_interval=2,
            moe_layer_start_index=0,
            moe_layer_end_index=2,
            moe_num_shared_experts=0,
        ),
    ),
    Case(
        name="minimax_m2",
        config=minimax_m2(),
        without={"part of a head": {"rotary_dim": 12}},
    ),
    Case(
        name="llama4",
        config=llama4(),
        tokens=21,
        without={
            "chunks": {"attention_chunk_size": 64},
            "temperature": {"attn_temperature_tuning": False},
            "norms": {"use_qk_norm": False},
            "layers that do not rotate": {"no_rope_layers": [1, 1]},
        },
    ),
    Case(
        name="llama4_interleaved",  # as the large one: dense layers between, no norms
        config=llama4(
            num_hidden_layers=4,
            interleave_moe_layer_step=2,
            no_rope_layers=[],
            no_rope_layer_interval=3,
            use_qk_norm=False,
            attention_bias=True,
            num_experts_per_tok=2,
            rope_scaling=None,
            num_key_value_heads=1,
        ),
        tokens=21,
        without={"chunks": {"attention_chunk_size": 64}},
    ),
    Case(
        name="granitemoe",
        config=granitemoe(),
        without={
            "attention": {"attention_multiplier": 0.4},
            "embedding": {"embedding_multiplier": 1.0},
            "logits": {"logits_scaling": 1.0},
            "residual": {"residual_multiplier": 1.0},
        },
    ),
    Case(
        name="olmoe",
        config=olmoe(),
        without={"weights as they are": {"norm_topk_prob": True}},
    ),
    Case(
        name="qwen2_moe",
        config=qwen2_moe(),
        without={"weights as they are": {"norm_topk_prob": True}},
    ),
    Case(
        name="qwen2_moe_dense_layers",
        config=qwen2_moe(
            mlp_only_layers=[1], num_hidden_layers=3, norm_topk_prob=True, num_key_value_heads=1
        ),
        without={"weights that add up to one": {"norm_topk_prob": False}},
    ),
]
