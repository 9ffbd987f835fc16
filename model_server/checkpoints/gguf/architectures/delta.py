"""Qwen3-Next and Qwen3.5: gated delta nets and gated attention; read, and not written.

Files hold -exp(A_log), and one more than the weight of a norm that adds one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from model_server.checkpoints.gguf.architecture import (
    Config,
    GgufArchitecture,
    JoinedPlace,
    TensorPlace,
    place,
)
from model_server.checkpoints.gguf.architectures.llama import PROJECTIONS, TENSORS, feed_forward
from model_server.checkpoints.gguf.facts import Facts, Key
from model_server.checkpoints.gguf.heads import (
    DECODER,
    FFW,
    RMS_EPS,
    SIZES,
    read_partly_rotated_heads,
)
from model_server.checkpoints.gguf.rope import read_rope
from sax.errors import CheckpointError


def _attends(config: Config, layer: int) -> bool:
    return config["layer_types"][layer] == "full_attention"


def _recurs(config: Config, layer: int) -> bool:
    return not _attends(config, layer)


_ATTENTION = {stem: place(at.name, needed=_attends) for stem, at in PROJECTIONS.items()}


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


_QWEN = {
    "attn_norm": _plus_one("input_layernorm"),
    "post_attention_norm": _plus_one("post_attention_layernorm"),
    **_ATTENTION,
    "attn_q_norm": _plus_one("self_attn.q_norm", needed=_attends),
    "attn_k_norm": _plus_one("self_attn.k_norm", needed=_attends),
}
_QWEN_TENSORS = {**TENSORS, "output_norm": _plus_one("model.norm")}
_QWEN_EXPERTS = {
    "ffn_gate_inp": place("mlp.gate"),
    **feed_forward("mlp.experts.{e}", "_exps"),
    **feed_forward("mlp.shared_expert", "_shexp"),
    "ffn_gate_inp_shexp": place("mlp.shared_expert_gate"),
}
_QWEN_EXPERT_KEYS = (
    Key("num_experts", "expert_count"),
    Key("num_experts_per_tok", "expert_used_count"),
    Key("moe_intermediate_size", "expert_feed_forward_length"),
    Key("shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
)
_QWEN_FIXED = {"hidden_act": "silu", "attention_bias": False}


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
    tensors=_QWEN_TENSORS,
    layer_tensors={
        **_QWEN,
        **_delta(order=False),
        "ssm_ba": place("linear_attn.in_proj_ba", needed=_recurs),
        **_QWEN_EXPERTS,
    },
    joined=(
        JoinedPlace(
            name="linear_attn.in_proj_qkvz.weight",
            parts=("attn_qkv.weight", "attn_gate.weight"),
            order=_of_groups,
            needed=_recurs,
        ),
    ),
    keys=(*DECODER, *_QWEN_EXPERT_KEYS),
    fixed={**_QWEN_FIXED, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True},
    more_config=_read_delta,
)
_QWEN35_LAYER = {
    **_QWEN,
    **_delta(order=True),
    "attn_qkv": place("linear_attn.in_proj_qkv", order=_AFTER, needed=_recurs),
    "attn_gate": place("linear_attn.in_proj_z", order=_VALUES, needed=_recurs),
    "ssm_alpha": place("linear_attn.in_proj_a", order=_ALONE, needed=_recurs),
    "ssm_beta": place("linear_attn.in_proj_b", order=_ALONE, needed=_recurs),
}
QWEN35 = GgufArchitecture(
    name="qwen35",
    model_types={"qwen3_5_text": "Qwen3_5ForCausalLM"},
    tensors=_QWEN_TENSORS,
    layer_tensors={**_QWEN35_LAYER, **feed_forward()},
    keys=(*SIZES, FFW, RMS_EPS),
    fixed=_QWEN_FIXED,
    more_config=_read_qwen35,
)
QWEN35MOE = GgufArchitecture(
    name="qwen35moe",
    model_types={"qwen3_5_moe_text": "Qwen3_5MoeForCausalLM"},
    tensors=_QWEN_TENSORS,
    layer_tensors={**_QWEN35_LAYER, **_QWEN_EXPERTS},
    keys=(*SIZES, RMS_EPS, *_QWEN_EXPERT_KEYS),
    fixed=_QWEN_FIXED,
    more_config=_read_qwen35,
    ignored=("feed_forward_length",),
)
ALL = (QWEN3NEXT, QWEN35, QWEN35MOE)
