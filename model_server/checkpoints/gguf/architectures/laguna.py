"""Laguna, Step 3.5 and MiMo-V2-Flash: other heads in layers with a window, experts; only read.

A file of Laguna does not say which layers have a window: all but every fourth from the first, as
llama.cpp has it. Nor does it hold the cap of the experts' scores, which the published models do not
have. One of MiMo-V2-Flash holds the tokens before a query's own as its window.
"""

from __future__ import annotations

from typing import Any

from model_server.checkpoints.gguf.architecture import Config, GgufArchitecture, JoinedPlace, place
from model_server.checkpoints.gguf.architectures.experts import (
    SILU,
    USED,
    is_dense,
    is_sparse,
    only_shares,
    only_sigmoid,
    read_sparse,
)
from model_server.checkpoints.gguf.architectures.llama import (
    HEAD_NORMS,
    NORMS,
    PROJECTIONS,
    TENSORS,
    feed_forward,
    plus_one,
)
from model_server.checkpoints.gguf.facts import Facts, Key
from model_server.checkpoints.gguf.heads import (
    DECODER,
    FFW,
    FULL,
    LAYERS,
    PATTERN,
    RMS_EPS,
    SLIDING,
    WINDOW,
    count_of_kind,
    read_counts,
    read_partly_rotated_heads,
    read_rotated,
    read_window,
)
from model_server.checkpoints.gguf.rope import read_local_rope, read_rope, rope_of_kind
from sax.errors import CheckpointError

_PERIOD = 4  # of the layers, from the first on, that see everything
_HEADS, _KV_HEADS = "attention.head_count", "attention.head_count_kv"


def _read(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    only_shares(facts)
    layers = config["num_hidden_layers"]
    counts = read_counts(facts, _HEADS, layers)
    heads = read_partly_rotated_heads(facts, {**config, "num_attention_heads": counts[0]})
    turning, size, window = heads.pop("rotated"), heads["head_dim"], read_window(facts)
    full = rope_of_kind(read_rope(facts, turning), turning, size)
    return {
        **heads,
        "attention_bias": facts.has("blk.0.attn_q.bias"),
        "gating": _gating(facts, counts[0], size),
        "layer_types": [
            FULL if not window or at % _PERIOD == 0 else SLIDING for at in range(layers)
        ],
        "num_attention_heads": counts[0],
        "num_attention_heads_per_layer": counts,
        "rope_parameters": {
            FULL: full,
            SLIDING: read_local_rope(facts, full["rope_theta"], size, size),
        },
        "sliding_window": window or config["max_position_embeddings"],
    }


def _gating(facts: Facts, heads: int, size: int) -> str:
    rows = facts.rows("blk.0.attn_gate.weight")
    if rows not in (heads, heads * size):
        raise CheckpointError(
            f"its gate has {rows} rows, not one for each of {heads} heads, nor for their "
            f"{size} dimensions"
        )
    return "per-head" if rows == heads else "per-element"


_SIZES = (
    Key("hidden_size", "embedding_length"),
    LAYERS,
    Key("max_position_embeddings", "context_length"),
    FFW,
    RMS_EPS,
)
LAGUNA = GgufArchitecture(
    name="laguna",
    model_types={"laguna": "LagunaForCausalLM"},
    tensors=TENSORS,
    layer_tensors={
        **NORMS,
        **PROJECTIONS,
        **HEAD_NORMS,
        "attn_gate": place("self_attn.g_proj"),
        **feed_forward(needed=is_dense),
        "ffn_gate_inp": place("mlp.gate", needed=is_sparse),
        "exp_probs_b.bias": place("mlp.experts.e_score_correction_bias", needed=is_sparse),
        **feed_forward("mlp.experts.{e}", "_exps", needed=is_sparse),
        **feed_forward("mlp.shared_expert", "_shexp", needed=is_sparse),
    },
    keys=(
        *_SIZES,
        Key("first_k_dense_replace", "leading_dense_block_count", default=0, least=0),
        Key("moe_intermediate_size", "expert_feed_forward_length"),
        Key("moe_routed_scaling_factor", "expert_weights_scale", float, 1.0),
        Key("num_experts", "expert_count"),
        USED,
        Key("shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
    ),
    fixed=SILU,
    more_config=_read,
)


# --- Step 3.5


def _read_step(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    only_shares(facts)
    layers, size = config["num_hidden_layers"], facts.whole("attention.key_length")
    if facts.whole("attention.value_length", size) != size:
        raise CheckpointError("its keys and values have heads of different sizes")
    slides, counts = facts.listed(PATTERN, layers), read_counts(facts, _HEADS, layers)
    if any(slides) and [bool(its) for its in slides[:2]] != [False, True]:
        raise CheckpointError(
            "its first two layers, whose bases of positions the converter takes for all, are not "
            "one that sees everything and one with a window"
        )
    # Half of a head rotates in layers that see everything, which files do not say.
    full = rope_of_kind(read_rope(facts, size // 2), size // 2, size)
    local = read_local_rope(facts, full["rope_theta"], size, size)
    return {
        "attention_bias": facts.has("blk.0.attn_q.bias"),
        "head_dim": size,
        "layer_types": [SLIDING if its else FULL for its in slides],
        "mlp_layer_types": read_sparse(facts, layers),
        "num_attention_heads": count_of_kind(counts, slides, False),
        "num_key_value_heads": facts.whole(_KV_HEADS),
        "num_sliding_attention_heads": count_of_kind(counts, slides, True),
        "rope_parameters": {FULL: full, SLIDING: local},
        "sliding_window": facts.whole(WINDOW),
        "swiglu_limits": _limits(facts, "swiglu_clamp_exp", layers),
        "swiglu_limits_shared": _limits(facts, "swiglu_clamp_shexp", layers),
    }


def _limits(facts: Facts, suffix: str, layers: int) -> list[float]:
    """Return the bound of each layer's gates, 0 if it has none."""
    found = facts.listed(suffix, layers, [0.0] * layers)
    if not all(type(limit) is float and limit >= 0 for limit in found):
        raise CheckpointError(f"its {suffix} is {found}, not a number for each layer")
    return [float(f"{limit:.7g}") for limit in found]  # the decimals that the writer meant


STEP35 = GgufArchitecture(
    name="step35",
    model_types={"step3p5": "Step3p5ForCausalLM"},
    tensors={**TENSORS, **plus_one({"output_norm": TENSORS["output_norm"]})},
    layer_tensors={
        **PROJECTIONS,
        **plus_one({**NORMS, **HEAD_NORMS}),
        "attn_gate": place("self_attn.g_proj"),
        **feed_forward(needed=is_dense),
        "ffn_gate_inp": place("moe.gate", needed=is_sparse),
        "exp_probs_b.bias": place("moe.router_bias", needed=is_sparse),
        **feed_forward("share_expert", "_shexp", needed=is_sparse),
    },
    joined=tuple(
        JoinedPlace(
            name=f"moe.{part}_proj.weight", parts=(f"ffn_{part}_exps.weight",), needed=is_sparse
        )
        for part in ("gate", "up", "down")
    ),
    keys=(
        *_SIZES,
        Key("moe_intermediate_size", "expert_feed_forward_length"),
        Key("moe_router_scaling_factor", "expert_weights_scale", float, 1.0),
        Key("n_routed_experts", "expert_count"),
        USED,
        Key("share_expert_dim", "expert_shared_feed_forward_length"),
    ),
    fixed=SILU,
    more_config=_read_step,
    # Which layers have experts is what their tensors say.
    ignored=("leading_dense_block_count", "moe_every_n_layers"),
)


# --- MiMo-V2-Flash


def _slides(config: Config, layer: int) -> bool:
    return config["layer_types"][layer] == SLIDING


def _read_mimo(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    only_sigmoid(facts)
    layers, size = config["num_hidden_layers"], facts.whole("attention.key_length")
    slides, rotated = facts.listed(PATTERN, layers), read_rotated(facts, size)
    full = rope_of_kind(read_rope(facts, rotated), rotated, size)
    local = read_local_rope(facts, full["rope_theta"], size, rotated)
    scaled = facts.get("attention.value_scale") is not None
    return {
        "attention_bias": facts.has("blk.0.attn_q.bias"),
        "attention_value_scale": facts.number("attention.value_scale") if scaled else None,
        "head_dim": size,
        "layer_types": [SLIDING if its else FULL for its in slides],
        "mlp_layer_types": read_sparse(facts, layers),
        "num_key_value_heads": _mimo_kv_heads(read_counts(facts, _KV_HEADS, layers), slides),
        "rope_parameters": {FULL: full, SLIDING: local},
        "sliding_window_size": facts.whole(WINDOW),
        "v_head_dim": facts.whole("attention.value_length"),
    }


def _mimo_kv_heads(counts: list[int], slides: list[Any]) -> int:
    """Return those of layers that see everything, of which layers with a window have twice."""
    heads = min(count // 2 if its else count for count, its in zip(counts, slides, strict=True))
    if counts != [2 * heads if its else heads for its in slides] or not heads:
        raise CheckpointError(
            f"its {_KV_HEADS} is {counts}; layers with a window have twice those of the others"
        )
    return heads


MIMO2 = GgufArchitecture(
    name="mimo2",
    model_types={"mimo_v2_flash": "MiMoV2FlashForCausalLM"},
    tensors=TENSORS,
    layer_tensors={
        **NORMS,
        **PROJECTIONS,
        "attn_sinks.weight": place("self_attn.attention_sink_bias", needed=_slides),
        **feed_forward(needed=is_dense),
        "ffn_gate_inp": place("mlp.gate", needed=is_sparse),
        "exp_probs_b.bias": place("mlp.gate.e_score_correction_bias", needed=is_sparse),
        **feed_forward("mlp.experts.{e}", "_exps", needed=is_sparse),
    },
    keys=(
        *DECODER,
        Key("moe_intermediate_size", "expert_feed_forward_length"),
        Key("n_group", "expert_group_count", default=1),
        Key("n_routed_experts", "expert_count"),
        Key("norm_topk_prob", "expert_weights_norm", bool, True),
        USED,
        Key("routed_scaling_factor", "expert_weights_scale", float, 1.0),
        Key("topk_group", "expert_group_used_count", default=1),
    ),
    fixed=SILU,
    more_config=_read_mimo,
)

ALL = (LAGUNA, STEP35, MIMO2)
