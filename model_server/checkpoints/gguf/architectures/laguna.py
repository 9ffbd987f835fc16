"""Laguna: gates on what heads find, more heads in some layers, experts; read and not written.

A file does not say which layers have a window: all but every fourth from the first, as llama.cpp
has it. Nor does it hold the cap of the experts' scores, which the published models do not have.
"""

from __future__ import annotations

from typing import Any

from model_server.checkpoints.gguf.architecture import GgufArchitecture, place
from model_server.checkpoints.gguf.architectures.experts import (
    SILU,
    USED,
    is_dense,
    is_sparse,
    only_sigmoid,
)
from model_server.checkpoints.gguf.architectures.llama import (
    HEAD_NORMS,
    NORMS,
    PROJECTIONS,
    TENSORS,
    feed_forward,
)
from model_server.checkpoints.gguf.facts import Facts, Key
from model_server.checkpoints.gguf.heads import (
    FFW,
    FULL,
    LAYERS,
    RMS_EPS,
    SLIDING,
    read_partly_rotated_heads,
    read_window,
)
from model_server.checkpoints.gguf.rope import read_rope
from sax.errors import CheckpointError

_PERIOD = 4  # of the layers, from the first on, that see everything
_HEADS = "attention.head_count"


def _read(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    only_sigmoid(facts)
    if not facts.flag("expert_weights_norm", True):
        raise CheckpointError("its expert_weights_norm is false; supported is true")
    layers, counts = config["num_hidden_layers"], _heads(facts, config["num_hidden_layers"])
    heads = read_partly_rotated_heads(facts, {**config, "num_attention_heads": counts[0]})
    turning, size, window = heads.pop("rotated"), heads["head_dim"], read_window(facts)
    full = _rope(read_rope(facts, turning), turning / size)
    return {
        **heads,
        "attention_bias": facts.has("blk.0.attn_q.bias"),
        "gating": _gating(facts, counts[0], size),
        "layer_types": [
            FULL if not window or at % _PERIOD == 0 else SLIDING for at in range(layers)
        ],
        "num_attention_heads": counts[0],
        "num_attention_heads_per_layer": counts,
        "rope_parameters": {FULL: full, SLIDING: _local_rope(facts, full, size)},
        "sliding_window": window or config["max_position_embeddings"],
    }


def _heads(facts: Facts, layers: int) -> list[int]:
    given = facts.get_any(_HEADS)
    counts = [given] * layers if type(given) is int else facts.listed(_HEADS, layers)
    if not all(type(count) is int and count > 0 for count in counts):
        raise CheckpointError(f"its {_HEADS} is {counts!r}, not a whole number for each layer")
    return counts


def _gating(facts: Facts, heads: int, size: int) -> str:
    rows = facts.rows("blk.0.attn_gate.weight")
    if rows not in (heads, heads * size):
        raise CheckpointError(
            f"its gate has {rows} rows, not one for each of {heads} heads, nor for their "
            f"{size} dimensions"
        )
    return "per-head" if rows == heads else "per-element"


def _rope(given: dict[str, Any], share: float) -> dict[str, Any]:
    scaling = given["rope_scaling"] or {"rope_type": "default"}
    return {**scaling, "rope_theta": given["rope_theta"], "partial_rotary_factor": share}


def _local_rope(facts: Facts, full: dict[str, Any], size: int) -> dict[str, Any]:
    """Return the rope of layers with a window, which is not stretched."""
    turning = facts.whole("rope.dimension_count_swa", size)
    theta = facts.number("rope.freq_base_swa", full["rope_theta"])
    return _rope({"rope_theta": theta, "rope_scaling": None}, turning / size)


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
        Key("hidden_size", "embedding_length"),
        LAYERS,
        Key("max_position_embeddings", "context_length"),
        FFW,
        RMS_EPS,
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
