"""Qwen 2 to 3.5, their mixtures of experts, and the text of the VL models.

Up to Qwen 3 rows and values are as published. llama.cpp implements no window for those; here
it is written and read under GGUF's own keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from model_server.checkpoints.gguf.architecture import (
    Config,
    GgufArchitecture,
    JoinedPlace,
    TensorPlace,
    place,
)
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
    FFW,
    FULL,
    RMS_EPS,
    SIZES,
    SLIDING,
    WINDOW,
    read_heads,
    read_layer_types,
    read_partly_rotated_heads,
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


# --- Qwen3-Next and Qwen3.5: gated delta nets and gated attention; read, and not written.
#
# Files hold -exp(A_log), and one more than the weight of a norm that adds one.


def _attends(config: Config, layer: int) -> bool:
    return config["layer_types"][layer] == "full_attention"


def _recurs(config: Config, layer: int) -> bool:
    return not _attends(config, layer)


_GATED_ATTENTION = {stem: place(at.name, needed=_attends) for stem, at in PROJECTIONS.items()}


@dataclass(frozen=True, slots=True)
class _ValueHeads:
    """Qwen3.5's files count value heads first within a group, then the groups.

    Here all heads of a group follow one another. `first` rows, of queries and keys, stay.
    """

    size: str | None  # config.json key with the numbers per head; None: one
    after_keys: bool = False

    def for_tensor(self, rows: int, config: Config, name: str) -> np.ndarray:
        groups, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
        size = config[self.size] if self.size else 1
        first = 2 * groups * config["linear_key_head_dim"] if self.after_keys else 0
        if rows != first + heads * size:
            raise CheckpointError(f"tensor {name} has {rows} rows; its heads need {heads * size}")
        file_head = np.arange(heads).reshape(-1, groups).T.ravel()
        order = file_head[:, None] * size + np.arange(size)
        return np.concatenate([np.arange(first), first + order.ravel()])


_ALONE, _VALUES = _ValueHeads(None), _ValueHeads("linear_value_head_dim")
_AFTER = _ValueHeads("linear_value_head_dim", after_keys=True)


def _plus_one(name: str, **rest: Any) -> TensorPlace:
    return place(name, plus=1.0, **rest)


def _delta(order: bool) -> dict[str, TensorPlace]:
    """Return a delta net's tensors; order: value heads are in another one in the file."""
    alone, values, after = (_ALONE, _VALUES, _AFTER) if order else (None, None, None)
    name = "linear_attn"
    return {
        "ssm_a": place(
            f"{name}.A_log", flat=True, decay=True, bare=True, order=alone, needed=_recurs
        ),
        "ssm_conv1d": place(f"{name}.conv1d", filters=True, order=after, needed=_recurs),
        "ssm_dt.bias": place(f"{name}.dt_bias", order=alone, needed=_recurs),
        "ssm_norm": place(f"{name}.norm", needed=_recurs),
        "ssm_out": place(f"{name}.out_proj", columns=values, needed=_recurs),
    }


_GATED_LAYER = {
    "attn_norm": _plus_one("input_layernorm"),
    "post_attention_norm": _plus_one("post_attention_layernorm"),
    **_GATED_ATTENTION,
    "attn_q_norm": _plus_one("self_attn.q_norm", needed=_attends),
    "attn_k_norm": _plus_one("self_attn.k_norm", needed=_attends),
}
_GATED_TENSORS = {**TENSORS, "output_norm": _plus_one("model.norm")}
_GATED_EXPERTS = {
    "ffn_gate_inp": place("mlp.gate"),
    **feed_forward("mlp.experts.{e}", "_exps"),
    **feed_forward("mlp.shared_expert", "_shexp"),
    "ffn_gate_inp_shexp": place("mlp.shared_expert_gate"),
}
_GATED_EXPERT_KEYS = (
    Key("num_experts", "expert_count"),
    Key("num_experts_per_tok", "expert_used_count"),
    Key("moe_intermediate_size", "expert_feed_forward_length"),
    Key("shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
)
_GATED_FIXED = {"hidden_act": "silu", "attention_bias": False}


def _read_delta(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    heads = read_partly_rotated_heads(facts, config)
    turning = heads.pop("rotated")
    values, inner = facts.whole("ssm.time_step_rank"), facts.whole("ssm.inner_size")
    if inner % values:
        raise CheckpointError(f"its ssm.inner_size {inner} is not a multiple of {values} heads")
    return {
        **heads,
        **read_rope(facts, turning),
        "partial_rotary_factor": turning / heads["head_dim"],
        "layer_types": _kinds(facts, config["num_hidden_layers"]),
        "linear_conv_kernel_dim": facts.whole("ssm.conv_kernel"),
        "linear_key_head_dim": facts.whole("ssm.state_size"),
        "linear_num_key_heads": facts.whole("ssm.group_count"),
        "linear_num_value_heads": values,
        "linear_value_head_dim": inner // values,
    }


def _kinds(facts: Facts, layers: int) -> list[str]:
    every = facts.whole("full_attention_interval", 4)
    usual = [(layer + 1) % every != 0 for layer in range(layers)]
    recurs = facts.listed("attention.recurrent_layers", layers, usual)
    return ["linear_attention" if its else "full_attention" for its in recurs]


def _read_qwen35(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    facts.listed("rope.dimension_sections", 3, [0] * 3)  # of pictures: a text has one position
    return _read_delta(facts, config)


def _of_groups(config: Config) -> np.ndarray:
    """Rows of Qwen3-Next's q, k, v and z, here group by group, there one kind after another."""
    groups, ratio = config["linear_num_key_heads"], config["linear_num_value_heads"]
    keys = config["linear_key_head_dim"]
    values = ratio // groups * config["linear_value_head_dim"]
    widths = (keys, keys, values, values)
    starts = np.cumsum([0, *(width * groups for width in widths[:3])])
    return np.concatenate(
        [
            start + group * width + np.arange(width)
            for group in range(groups)
            for start, width in zip(starts, widths, strict=True)
        ]
    )


QWEN3NEXT = GgufArchitecture(
    name="qwen3next",
    model_types={"qwen3_next": "Qwen3NextForCausalLM"},
    tensors=_GATED_TENSORS,
    layer_tensors={
        **_GATED_LAYER,
        **_delta(order=False),
        "ssm_ba": place("linear_attn.in_proj_ba", needed=_recurs),
        **_GATED_EXPERTS,
    },
    joined=(
        JoinedPlace(
            name="linear_attn.in_proj_qkvz.weight",
            parts=("attn_qkv.weight", "attn_gate.weight"),
            order=_of_groups,
            needed=_recurs,
        ),
    ),
    keys=(*DECODER, *_GATED_EXPERT_KEYS),
    fixed={**_GATED_FIXED, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True},
    more_config=_read_delta,
)
_QWEN35_LAYER = {
    **_GATED_LAYER,
    **_delta(order=True),
    "attn_qkv": place("linear_attn.in_proj_qkv", order=_AFTER, needed=_recurs),
    "attn_gate": place("linear_attn.in_proj_z", order=_VALUES, needed=_recurs),
    "ssm_alpha": place("linear_attn.in_proj_a", order=_ALONE, needed=_recurs),
    "ssm_beta": place("linear_attn.in_proj_b", order=_ALONE, needed=_recurs),
}
QWEN35 = GgufArchitecture(
    name="qwen35",
    model_types={"qwen3_5_text": "Qwen3_5ForCausalLM"},
    tensors=_GATED_TENSORS,
    layer_tensors={**_QWEN35_LAYER, **feed_forward()},
    keys=(*SIZES, FFW, RMS_EPS),
    fixed=_GATED_FIXED,
    more_config=_read_qwen35,
)
QWEN35MOE = GgufArchitecture(
    name="qwen35moe",
    model_types={"qwen3_5_moe_text": "Qwen3_5MoeForCausalLM"},
    tensors=_GATED_TENSORS,
    layer_tensors={**_QWEN35_LAYER, **_GATED_EXPERTS},
    keys=(*SIZES, RMS_EPS, *_GATED_EXPERT_KEYS),
    fixed=_GATED_FIXED,
    more_config=_read_qwen35,
    ignored=("feed_forward_length",),
)
