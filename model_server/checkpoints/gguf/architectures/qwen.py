"""Qwen 2, 2.5, 3 and 3 MoE, and the text of the VL models: rows and values are as published.

llama.cpp implements no sliding window for these; here it is written and read under GGUF's own keys.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from model_server.checkpoints.gguf.architecture import Config, GgufArchitecture, place
from model_server.checkpoints.gguf.architectures.llama import (
    HEAD_NORMS,
    INVERSE_FREQUENCIES,
    NORMS,
    PROJECTIONS,
    TENSORS,
    feed_forward,
)
from model_server.checkpoints.gguf.facts import Facts, Key
from model_server.checkpoints.gguf.heads import (
    DECODER,
    FULL,
    SLIDING,
    WINDOW,
    read_heads,
    read_layer_types,
    read_window,
    window_metadata,
)
from model_server.checkpoints.gguf.rope import (
    read_rope,
    read_rotary_heads,
    rope_factors,
    rotary_heads_metadata,
)
from sax.errors import CheckpointError


def _read_qwen2(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    return read_rotary_heads(facts, config) | _read_windows(facts, config)


def _read_qwen3(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    return _read_qwen2(facts, config) | {"attention_bias": facts.has("blk.0.attn_q.bias")}


def _read_windows(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    window, layers = read_window(facts), config["num_hidden_layers"]
    if window is None:
        return {"sliding_window": None, "use_sliding_window": False}
    kinds = read_layer_types(facts, layers, 0)
    return {
        "sliding_window": window,
        "use_sliding_window": True,
        "max_window_layers": kinds.index(SLIDING) if SLIDING in kinds else layers,
        "layer_types": kinds,
    }


def _metadata(config: Config) -> dict[str, Any]:
    more = rotary_heads_metadata(config)
    if not config.get("use_sliding_window"):
        return more
    layers, first = config["num_hidden_layers"], config.get("max_window_layers", 28)
    kinds = config.get("layer_types") or [
        SLIDING if layer >= first else FULL for layer in range(layers)
    ]
    return more | window_metadata(config.get("sliding_window"), kinds, 0)


QWEN2 = GgufArchitecture(
    name="qwen2",
    model_types={"qwen2": "Qwen2ForCausalLM"},
    tensors=TENSORS,
    layer_tensors={**NORMS, **PROJECTIONS, **feed_forward()},
    keys=DECODER,
    fixed={"hidden_act": "silu"},
    more_config=_read_qwen2,
    more_metadata=_metadata,
    factors=rope_factors,
    dropped=INVERSE_FREQUENCIES,
)
_ATTENTION = {**NORMS, **PROJECTIONS, **HEAD_NORMS}
QWEN3 = GgufArchitecture(
    name="qwen3",
    model_types={"qwen3": "Qwen3ForCausalLM"},
    tensors=TENSORS,
    layer_tensors={**_ATTENTION, **feed_forward()},
    keys=DECODER,
    fixed={"hidden_act": "silu"},
    more_config=_read_qwen3,
    more_metadata=_metadata,
    factors=rope_factors,
)
QWEN3MOE = GgufArchitecture(
    name="qwen3moe",
    model_types={"qwen3_moe": "Qwen3MoeForCausalLM"},
    tensors=TENSORS,
    layer_tensors={
        **_ATTENTION,
        "ffn_gate_inp": place("mlp.gate"),
        **feed_forward("mlp.experts.{e}", "_exps"),
    },
    keys=(
        *DECODER,
        Key("num_experts", "expert_count"),
        Key("num_experts_per_tok", "expert_used_count"),
        Key("moe_intermediate_size", "expert_feed_forward_length"),
        # llama.cpp has no key for this and always normalises, as the published models do.
        Key("norm_topk_prob", "expert_weights_norm", bool, True),
    ),
    fixed={"hidden_act": "silu", "decoder_sparse_step": 1, "mlp_only_layers": []},
    more_config=_read_qwen3,
    more_metadata=_metadata,
    factors=rope_factors,
)


# --- Mellum 2, whose layers with a window rotate in another way: read, and not written


def _read_mellum(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    heads = read_heads(facts, config)
    rope = read_rope(facts, heads["head_dim"])
    theta = rope["rope_theta"]
    return {
        **heads,
        "attention_bias": facts.has("blk.0.attn_q.bias"),
        "layer_types": read_layer_types(facts, config["num_hidden_layers"], 4),
        "sliding_window": facts.whole(WINDOW),
        "rope_parameters": {
            FULL: {"rope_theta": theta, **(rope["rope_scaling"] or {"rope_type": "default"})},
            SLIDING: {
                "rope_theta": facts.number("rope.freq_base_swa", theta),
                "rope_type": "default",
            },
        },
    }


MELLUM = replace(
    QWEN3MOE,
    name="mellum",
    model_types={"mellum": "MellumForCausalLM"},
    keys=(
        *(key for key in QWEN3MOE.keys if key.suffix != "expert_count"),
        Key("num_local_experts", "expert_count"),
    ),
    fixed={"hidden_act": "silu"},
    more_config=_read_mellum,
    more_metadata=None,
)


# --- the text models of Qwen-VL, which are read and not written


_SECTIONS, _LEVELS = "rope.dimension_sections", "n_deepstack_layers"


def _read_vl(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    """Positions of pictures count in three directions; llama.cpp's lists have a fourth, 0."""
    more, sections = read_rotary_heads(facts, config), facts.listed(_SECTIONS, 3)
    if not all(type(size) is int and size >= 0 for size in sections):
        raise CheckpointError(f"its {_SECTIONS} is {sections}; it takes three numbers")
    rope = {"rope_type": "default", "rope_theta": more.pop("rope_theta")}
    if more.pop("rope_scaling"):
        raise CheckpointError("its positions are scaled, which these models' are not")
    return more | {"rope_parameters": rope | {"mrope_section": sections}}


def _read_qwen3vl(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    return _read_vl(facts, config) | {"attention_bias": facts.has("blk.0.attn_q.bias")}


QWEN2VL = GgufArchitecture(
    name="qwen2vl",
    model_types={"qwen2_5_vl_text": "Qwen2_5_VLForConditionalGeneration"},
    tensors=QWEN2.tensors,
    layer_tensors=QWEN2.layer_tensors,
    keys=DECODER,
    fixed={**QWEN2.fixed, "use_sliding_window": False},
    more_config=_read_vl,
)
QWEN3VL = GgufArchitecture(
    name="qwen3vl",
    model_types={"qwen3_vl_text": "Qwen3VLForConditionalGeneration"},
    tensors=QWEN3.tensors,
    layer_tensors=QWEN3.layer_tensors,
    keys=DECODER,
    fixed=QWEN3.fixed,
    more_config=_read_qwen3vl,
    ignored=(_LEVELS,),  # of the encoder of pictures
)
QWEN3VLMOE = GgufArchitecture(
    name="qwen3vlmoe",
    model_types={"qwen3_vl_moe_text": "Qwen3VLMoeForConditionalGeneration"},
    tensors=QWEN3MOE.tensors,
    layer_tensors=QWEN3MOE.layer_tensors,
    keys=QWEN3MOE.keys,
    fixed={**QWEN3MOE.fixed, "experts_apart": True},
    more_config=_read_qwen3vl,
    ignored=(_LEVELS,),
)
