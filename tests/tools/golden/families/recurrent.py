"""Families whose layers keep a state."""

from __future__ import annotations

from collections import Counter

from tests.tools.golden.common import Shapes
from tests.tools.golden.families.case import Case

# What MiniMax computes from its sizes.
BUFFERS = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")
# What Qwen4 computes from its sizes.
HASHES = ("layer_multipliers", "ngram_heads_offsets", "ngram_heads_vocab_sizes")


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


def dense_apart(name: str) -> str:
    """The name of a Kimi Linear's tensor; transformers 5.24 saves dense layers as if of experts."""
    for part in ("gate_proj", "up_proj", "down_proj"):
        name = name.replace(f"block_sparse_moe.{part}.", f"mlp.{part}.")
    return name


CASES = [
    Case(
        "minimax",
        tokens=21,
        without={
            "factor of attention": {"full_attn_alpha_factor": 1.0},
            "factor of the memory": {"linear_attn_beta_factor": 1.0},
            "factor of experts": {"mlp_beta_factor": 1.0},
        },
        computed=BUFFERS,
    ),
    Case("minimax_alternating", tokens=21, left_out=BUFFERS),  # as MiniMax publishes it
    Case(
        "falcon_h1",
        without={
            "keys": {"key_multiplier": 1.0},
            "state space": {"ssm_multipliers": [1.0] * 5},
            "feed-forward": {"mlp_multipliers": [1.0, 1.0]},
            "into attention": {"attention_in_multiplier": 1.0},
            "logits": {"lm_head_multiplier": 1.0},
        },
    ),
    Case("falcon_h1_normed_biased_tied", without={"order": {"mamba_norm_before_gate": True}}),
    Case("falcon_h1_normed_first"),
    Case("olmo_hybrid", without={"rate": {"linear_allow_neg_eigval": False}}),
    Case("olmo_hybrid_rope", stored=as_olmo_hybrid),  # as Ai2 publishes it
    Case("bamba"),
    Case("bamba_biases_tied"),
    Case(
        "nemotron_h",
        without={
            "scaling": {"routed_scaling_factor": 1.0},
            "normalised": {"norm_topk_prob": False},
        },
    ),
    Case("nemotron_h_dense"),
    Case("nemotron_h_latent"),
    Case(
        "granitemoehybrid",
        without={
            "attention": {"attention_multiplier": 1.0},
            "embedding": {"embedding_multiplier": 1},
            "residual": {"residual_multiplier": 1.0},
            "logits": {"logits_scaling": 1},
        },
    ),
    Case("granitemoehybrid_rope_no_experts", without={"rope": {"position_embedding_type": "nope"}}),
    Case("mamba2", without={"limit": {"time_step_limit": [0.0, 0.001]}}),
    Case("mamba2_biased_tied", without={"limit": {"time_step_limit": [0.0, float("inf")]}}),
    Case("lfm2"),
    Case("lfm2_wide_conv_biased"),
    Case(
        "lfm2_moe",
        without={
            "scaling": {"routed_scaling_factor": 1.0},
            "normalised": {"norm_topk_prob": False},
        },
    ),
    Case("lfm2_moe_unbiased"),
    Case("qwen3_next", without={"partial": {"partial_rotary_factor": 0.5}}),
    Case("qwen3_5"),
    Case("qwen3_5_moe", stored=experts_together),
    Case("qwen3_5_moe_experts_apart"),
    Case("qwen3_next_dense_layers"),
    Case(
        "qwen4_exp",
        without={
            "blocks": {"indexer_budget": 64},
            "separator": {"eos_token_id": 2},
            "seed": {"seed": 7},
            "theta": {"rope_parameters.rope_theta": 10.0},
        },
        computed=HASHES,
    ),
    # As Qwen publishes it.
    Case(
        "qwen4_exp_together",
        stored=experts_together,
        without={
            "blocks": {"indexer_budget": 66},
            "separator": {"eos_token_id": 2},
            "gate": {"output_gate_type": "silu"},
        },
        left_out=HASHES,
    ),
    Case(
        "kimi_linear",
        tokens=21,
        without={
            "scaling": {"routed_scaling_factor": 1.0},
            "groups": {"num_expert_group": 1, "topk_group": 1},
        },
        published=dense_apart,
    ),
    Case(
        "kimi_linear_listed",
        without={"weights as they are": {"moe_renormalize": True}},
        published=dense_apart,
    ),
    Case(
        "bailing_hybrid",
        tokens=21,
        without={
            "bounded decay": {"kda_safe_gate": False},
            "bound": {"kda_lower_bound": -1.0},
            "theta": {"rope_theta": 10000.0},
            "groups": {"topk_group": 4},
        },
    ),
    Case("bailing_hybrid_unbounded", without={"decay": {"kda_safe_gate": True}}),
    # Pools that no page begins with.
    Case(
        "glm5_next",
        tokens=23,
        without={
            "choice": {"text_config.index_topk": 63},
            "another count": {"text_config.index_topk": 9},
            "bound": {"text_config.swiglu_limit": 10.0},
            "bounded decay": {"text_config.linear_lower_bound": None},
            "balanced mixture": {"text_config.hc_sinkhorn_iters": 1},
            "scaling": {"text_config.routed_scaling_factor": 1.0},
        },
    ),
    # Text keys beside the others, as older files name them; the last layer shares a choice.
    Case(
        "glm5_next_flat",
        tokens=23,
        without={
            "decay": {"linear_attn_config.safe_gate": True},
            "groups": {"topk_group": 2},
            "choice": {"index_topk": 64},
        },
    ),
]
