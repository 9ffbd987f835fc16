"""The grid of families whose layers keep a state: LFM2, Mamba-2, Qwen3-Next, Granite 4."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.golden.families_maker.case import Case, Shapes
from tests.golden.families_maker.decoders import decoder


def lfm2(**sizes: Any) -> dict[str, Any]:
    own = {
        "block_auto_adjust_ff_dim": True,
        "block_ffn_dim_multiplier": 1.0,
        "block_multiple_of": 16,
        "conv_L_cache": 3,
        "conv_bias": False,
        "layer_types": ["conv", "full_attention", "conv"],
        "norm_eps": 1e-05,
        "num_hidden_layers": 3,
        "rope_theta": 1000000.0,
        "tie_embedding": True,
    }
    made = decoder("Lfm2ForCausalLM", "lfm2", **own | sizes)
    return {k: v for k, v in made.items() if k not in _NOT_OF_LFM2}


def lfm2_moe(**sizes: Any) -> dict[str, Any]:
    own = {
        "architectures": ["Lfm2MoeForCausalLM"],
        "layer_types": ["conv", "full_attention"],
        "model_type": "lfm2_moe",
        "moe_intermediate_size": 24,
        "norm_topk_prob": True,
        "num_dense_layers": 1,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "num_hidden_layers": 2,
        "routed_scaling_factor": 1.5,
        "use_expert_bias": True,
    }
    return {k: v for k, v in lfm2().items() if not k.startswith("block_")} | own | sizes


_NOT_OF_LFM2 = ("hidden_act", "rms_norm_eps", "rope_scaling", "tie_word_embeddings")


def qwen3_next(**sizes: Any) -> dict[str, Any]:
    own = {
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "full_attention_interval": 3,
        "head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_value_head_dim": 12,
        "mlp_only_layers": [],
        "moe_intermediate_size": 24,
        "norm_topk_prob": True,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 3,
        "output_router_logits": False,
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000000.0,
        "router_aux_loss_coef": 0.001,
        "shared_expert_intermediate_size": 20,
    }
    return decoder("Qwen3NextForCausalLM", "qwen3_next", **own | sizes)


def qwen3_5(**sizes: Any) -> dict[str, Any]:
    left_out = ("decoder_sparse_step", "mlp_only_layers", "norm_topk_prob", "output_router_logits")
    own = {k: v for k, v in qwen3_next(**sizes).items() if "expert" not in k and "moe" not in k}
    rope = {
        "mrope_interleaved": True,
        "mrope_section": [1, 1, 0],
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000000.0,
        "rope_type": "default",
    }
    gone = (*left_out, "rope_theta", "rope_scaling", "partial_rotary_factor", "torch_dtype")
    text = {k: v for k, v in own.items() if k not in (*gone, "router_aux_loss_coef")}
    return text | {
        "architectures": ["Qwen3_5ForCausalLM"],
        "dtype": "bfloat16",
        "model_type": "qwen3_5_text",
        "rope_parameters": rope,
    }


def qwen3_5_moe(**sizes: Any) -> dict[str, Any]:
    dense, sparse = qwen3_5(**sizes), qwen3_next(**sizes)
    own = {k: v for k, v in sparse.items() if "expert" in k or k == "moe_intermediate_size"}
    whole = dense | own | {"architectures": ["Qwen3_5MoeForCausalLM"]}
    return {k: v for k, v in whole.items() if k != "intermediate_size"} | {
        "model_type": "qwen3_5_moe_text"
    }


def experts_together(shapes: Shapes) -> Shapes:
    """Merge the matrices of a layer's experts into two tensors, gates above ups."""
    made: Shapes = {}
    counts: Counter[str] = Counter()
    for name, shape in shapes.items():
        layer, found, rest = name.partition(".mlp.experts.")
        if not found:
            made[name] = shape
            continue
        part = rest.split(".")[1]
        counts[f"{layer} {part}"] += 1
        count, (rows, columns) = counts[f"{layer} {part}"], shape
        if part == "down_proj":
            made[f"{layer}{found}down_proj"] = (count, rows, columns)
        else:
            made[f"{layer}{found}gate_up_proj"] = (count, 2 * rows, columns)
    return made


def as_olmo_hybrid(shapes: Shapes) -> Shapes:
    """As Ai2 names them; transformers divides convolutions evenly when it saves."""
    made: Shapes = {}
    for name, shape in shapes.items():
        layer = name.partition(".feedforward_layer_norm.")[0]
        if f"{layer}.self_attn.q_proj.weight" in shapes:
            name = f"{layer}.post_attention_layernorm.weight"
        if "_conv1d." in name:
            rows, _ = shapes[name.replace("_conv1d.", "_proj.")]
            shape = (rows, *shape[1:])
        made[name] = shape
    return made


def mamba2(**sizes: Any) -> dict[str, Any]:
    return {
        "architectures": ["Mamba2ForCausalLM"],
        "bos_token_id": 0,
        "chunk_size": 256,
        "conv_kernel": 4,
        "eos_token_id": 0,
        "expand": 2,
        "head_dim": 8,
        "hidden_act": "silu",
        "hidden_size": 32,
        "initializer_range": 0.1,
        "layer_norm_epsilon": 1e-05,
        "model_type": "mamba2",
        "n_groups": 2,
        "num_heads": 8,
        "num_hidden_layers": 2,
        "pad_token_id": 0,
        "rescale_prenorm_residual": False,
        "residual_in_fp32": True,
        "state_size": 12,
        "tie_word_embeddings": False,
        "time_step_floor": 0.0001,
        "time_step_limit": [0.0, float("inf")],
        "time_step_max": 0.1,
        "time_step_min": 0.001,
        "time_step_rank": 2,
        "transformers_version": "4.45.0",
        "use_bias": False,
        "use_cache": True,
        "use_conv_bias": True,
        "vocab_size": 97,
    } | sizes


def bamba(**sizes: Any) -> dict[str, Any]:
    own = {
        "attention_bias": False,
        "attn_layer_indices": [1],
        "mamba_chunk_size": 256,
        "mamba_conv_bias": True,
        "mamba_d_conv": 4,
        "mamba_d_head": 12,
        "mamba_d_state": 10,
        "mamba_expand": 2,
        "mamba_n_groups": 1,
        "mamba_n_heads": 8,
        "mamba_proj_bias": False,
        "mlp_bias": False,
        "num_logits_to_keep": 1,
        "z_loss_coefficient": 0.0,
    }
    made = decoder("BambaForCausalLM", "bamba", **own | sizes)
    return {k: v for k, v in made.items() if k != "rope_scaling"}


def granitemoehybrid(**sizes: Any) -> dict[str, Any]:
    own = {
        "attention_bias": False,
        "attention_multiplier": 0.5,
        "embedding_multiplier": 3,
        "init_method": "mup",
        "intermediate_size": 20,
        "layer_types": ["mamba", "attention"],
        "logits_scaling": 0.25,
        "mamba_chunk_size": 256,
        "mamba_conv_bias": True,
        "mamba_d_conv": 4,
        "mamba_d_head": 12,
        "mamba_d_state": 10,
        "mamba_expand": 2,
        "mamba_n_groups": 1,
        "mamba_n_heads": 8,
        "mamba_proj_bias": False,
        "normalization_function": "rmsnorm",
        "num_experts_per_tok": 3,
        "num_local_experts": 8,
        "position_embedding_type": "nope",
        "residual_multiplier": 0.7,
        "rms_norm_eps": 1e-05,
        "shared_intermediate_size": 28,
        "tie_word_embeddings": True,
    }
    return decoder("GraniteMoeHybridForCausalLM", "granitemoehybrid", **own | sizes)


def nemotron_h(**sizes: Any) -> dict[str, Any]:
    own = {
        "attention_bias": False,
        "chunk_size": 128,
        "conv_kernel": 4,
        "expand": 2,
        "head_dim": 12,
        "hidden_dropout": 0.0,
        "hybrid_override_pattern": "ME*",
        "layer_norm_epsilon": 1e-05,
        "mamba_head_dim": 8,
        "mamba_hidden_act": "silu",
        "mamba_num_heads": 6,
        "mamba_proj_bias": False,
        "mamba_ssm_cache_dtype": "float32",
        "mlp_bias": False,
        "mlp_hidden_act": "relu2",
        "moe_intermediate_size": 20,
        "moe_shared_expert_intermediate_size": 28,
        "moe_shared_expert_overlap": False,
        "n_group": 1,
        "n_groups": 2,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "norm_eps": 1e-05,
        "norm_topk_prob": True,
        "num_experts_per_tok": 3,
        "num_hidden_layers": 3,
        "num_logits_to_keep": 1,
        "partial_rotary_factor": 1.0,
        "rescale_prenorm_residual": False,
        "residual_in_fp32": False,
        "routed_scaling_factor": 2.5,
        "sliding_window": None,
        "ssm_state_size": 10,
        "time_step_floor": 0.0001,
        "time_step_limit": [0.0, float("inf")],
        "time_step_max": 0.1,
        "time_step_min": 0.001,
        "topk_group": 1,
        "use_bias": False,
        "use_conv_bias": True,
        "use_mamba_kernels": True,
    }
    made = decoder("NemotronHForCausalLM", "nemotron_h", **own | sizes)
    return {
        k: v for k, v in made.items() if k not in ("hidden_act", "rms_norm_eps", "rope_scaling")
    }


def olmo_hybrid(**sizes: Any) -> dict[str, Any]:
    own = {
        "attention_bias": False,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_a_log_max": 16.0,
        "linear_a_log_min": 0.0,
        "linear_allow_neg_eigval": True,
        "linear_conv_kernel_dim": 4,
        "linear_dt_init_floor": 0.0001,
        "linear_dt_max": 0.1,
        "linear_dt_min": 0.001,
        "pad_token_id": 0,
        "linear_key_head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_value_head_dim": 12,
        "rope_parameters": {"rope_theta": None, "rope_type": "default"},
    }
    made = decoder("OlmoHybridForCausalLM", "olmo_hybrid", **own | sizes)
    return {k: v for k, v in made.items() if k not in ("rope_scaling", "rope_theta")}


def falcon_h1(**sizes: Any) -> dict[str, Any]:
    own = {
        "attention_bias": False,
        "attention_in_multiplier": 0.9,
        "attention_out_multiplier": 0.7,
        "attn_layer_indices": None,
        "embedding_multiplier": 3.5,
        "head_dim": 10,
        "key_multiplier": 0.4,
        "lm_head_multiplier": 0.3,
        "mamba_chunk_size": 128,
        "mamba_conv_bias": True,
        "mamba_d_conv": 4,
        "mamba_d_head": 12,
        "mamba_d_ssm": 72,
        "mamba_d_state": 10,
        "mamba_expand": 2,
        "mamba_n_groups": 1,
        "mamba_n_heads": 6,
        "mamba_norm_before_gate": False,
        "mamba_proj_bias": False,
        "mamba_rms_norm": False,
        "mamba_use_mlp": True,
        "mlp_bias": False,
        "mlp_expansion_factor": 8,
        "mlp_multipliers": [0.6, 1.7],
        "num_logits_to_keep": 1,
        "projectors_bias": False,
        "rope_theta": 100000000000.0,
        "ssm_in_multiplier": 1.3,
        "ssm_multipliers": [0.5, 0.7, 1.2, 1.4, 0.8],
        "ssm_out_multiplier": 0.6,
    }
    return decoder("FalconH1ForCausalLM", "falcon_h1", **own | sizes)


def minimax(**sizes: Any) -> dict[str, Any]:
    own = {
        "block_size": 8,
        "full_attn_alpha_factor": 1.5,
        "full_attn_beta_factor": 0.8,
        "head_dim": 12,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_attn_alpha_factor": 1.3,
        "linear_attn_beta_factor": 0.9,
        "mlp_alpha_factor": 1.2,
        "mlp_beta_factor": 0.7,
        "num_experts_per_tok": 2,
        "num_local_experts": 5,
        "rms_norm_eps": 1e-05,
        "rope_theta": 1000000.0,
        "router_jitter_noise": 0.0,
        "sliding_window": None,
    }
    return decoder("MiniMaxForCausalLM", "minimax", **own | sizes)


BUFFERS = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")

CASES = [
    Case(
        name="minimax",
        config=minimax(),
        tokens=21,
        computed=BUFFERS,
        without={
            "factor of attention": {"full_attn_alpha_factor": 1.0},
            "factor of the memory": {"linear_attn_beta_factor": 1.0},
            "factor of experts": {"mlp_beta_factor": 1.0},
        },
    ),
    Case(
        name="minimax_alternating",
        config={
            key: value
            for key, value in minimax(num_hidden_layers=3, num_key_value_heads=1).items()
            if key not in ("layer_types", "linear_attn_alpha_factor", "mlp_beta_factor")
        },
        tokens=21,
        computed=BUFFERS,
    ),
    Case(
        name="falcon_h1",
        config=falcon_h1(),
        without={
            "keys": {"key_multiplier": 1.0},
            "state space": {"ssm_multipliers": [1.0] * 5},
            "feed-forward": {"mlp_multipliers": [1.0, 1.0]},
            "into attention": {"attention_in_multiplier": 1.0},
            "logits": {"lm_head_multiplier": 1.0},
        },
    ),
    Case(
        name="falcon_h1_normed_biased_tied",
        config=falcon_h1(
            attention_bias=True,
            mamba_d_ssm=None,
            mamba_d_head="auto",
            mamba_n_groups=2,
            mamba_n_heads=8,
            mamba_proj_bias=True,
            mamba_rms_norm=True,
            mlp_bias=True,
            num_key_value_heads=1,
            projectors_bias=True,
            tie_word_embeddings=True,
        ),
        without={"order": {"mamba_norm_before_gate": True}},
    ),
    Case(
        name="falcon_h1_normed_first",
        config=falcon_h1(mamba_rms_norm=True, mamba_norm_before_gate=True, mlp_multipliers=None),
    ),
    Case(
        name="olmo_hybrid",
        config=olmo_hybrid(),
        stored=as_olmo_hybrid,
        without={"rate": {"linear_allow_neg_eigval": False}},
    ),
    Case(
        name="olmo_hybrid_rope",
        config=olmo_hybrid(
            layer_types=["full_attention", "linear_attention"],
            linear_allow_neg_eigval=False,
            linear_conv_kernel_dim=3,
            linear_num_key_heads=4,
            num_key_value_heads=4,
            rope_parameters={"rope_theta": 10000.0, "rope_type": "default"},
        ),
        stored=as_olmo_hybrid,
    ),
    Case(name="bamba", config=bamba()),
    Case(
        name="bamba_biases_tied",
        config=bamba(
            attention_bias=True,
            attn_layer_indices=[0],
            attn_rotary_emb=6,
            mamba_d_head="auto",
            mamba_n_groups=2,
            mamba_proj_bias=True,
            mlp_bias=True,
            num_key_value_heads=1,
            tie_word_embeddings=True,
        ),
    ),
    Case(
        name="nemotron_h",
        config=nemotron_h(),
        without={
            "scaling": {"routed_scaling_factor": 1.0},
            "normalised": {"norm_topk_prob": False},
        },
    ),
    Case(
        name="nemotron_h_dense",
        config=nemotron_h(
            hybrid_override_pattern="M-*-",
            mlp_bias=True,
            n_groups=1,
            num_hidden_layers=4,
            use_bias=True,
        ),
    ),
    Case(
        name="nemotron_h_latent",
        config=nemotron_h(
            hybrid_override_pattern="EM*",
            moe_latent_size=20,
            n_group=4,
            topk_group=2,
        ),
    ),
    Case(
        name="granitemoehybrid",
        config=granitemoehybrid(),
        without={
            "attention": {"attention_multiplier": 1.0},
            "embedding": {"embedding_multiplier": 1},
            "residual": {"residual_multiplier": 1.0},
            "logits": {"logits_scaling": 1},
        },
    ),
    Case(
        name="granitemoehybrid_rope_no_experts",
        config=granitemoehybrid(
            attention_bias=True,
            layer_types=["attention", "mamba"],
            mamba_n_groups=2,
            mamba_proj_bias=True,
            mamba_conv_bias=False,
            num_experts_per_tok=0,
            num_local_experts=0,
            position_embedding_type="rope",
            tie_word_embeddings=False,
        ),
        without={"rope": {"position_embedding_type": "nope"}},
    ),
    Case(
        name="mamba2",
        config=mamba2(),
        without={"limit": {"time_step_limit": [0.0, 0.001]}},
    ),
    Case(
        name="mamba2_biased_tied",
        config=mamba2(
            use_bias=True,
            tie_word_embeddings=True,
            n_groups=1,
            conv_kernel=3,
            time_step_limit=[0.3, 0.9],
        ),
        without={"limit": {"time_step_limit": [0.0, float("inf")]}},
    ),
    Case(
        name="lfm2",
        config=lfm2(),
    ),
    Case(
        name="lfm2_wide_conv_biased",
        config=lfm2(
            conv_L_cache=5,
            conv_bias=True,
            num_key_value_heads=1,
            block_auto_adjust_ff_dim=False,
            layer_types=["conv", "conv", "full_attention"],
        ),
    ),
    Case(
        name="lfm2_moe",
        config=lfm2_moe(),
        without={
            "scaling": {"routed_scaling_factor": 1.0},
            "normalised": {"norm_topk_prob": False},
        },
    ),
    Case(
        name="lfm2_moe_unbiased",
        config=lfm2_moe(
            conv_bias=True,
            layer_types=["full_attention", "conv"],
            num_dense_layers=0,
            tie_embedding=False,
            use_expert_bias=False,
        ),
    ),
    Case(
        name="qwen3_next",
        config=qwen3_next(),
        without={"partial": {"partial_rotary_factor": 0.5}},
    ),
    Case(
        name="qwen3_5",
        config=qwen3_5(linear_num_value_heads=6),
    ),
    Case(
        name="qwen3_5_moe",
        config=qwen3_5_moe(num_hidden_layers=2, full_attention_interval=2),
        stored=experts_together,
    ),
    Case(
        name="qwen3_5_moe_experts_apart",
        config=qwen3_5_moe(num_hidden_layers=2, full_attention_interval=2, num_experts=6),
    ),
    Case(
        name="qwen3_next_dense_layers",
        config=qwen3_next(
            mlp_only_layers=[1],
            linear_num_key_heads=3,
            linear_num_value_heads=3,
            linear_conv_kernel_dim=3,
            layer_types=["linear_attention", "full_attention", "linear_attention"],
        ),
    ),
]
