"""gpt-oss: attention sinks, and each expert's matrices and biases apart, often as MXFP4.

Files are read and, with the experts of a checkpoint apart, written; Hugging Face's folders hold
gates and ups of all experts in one tensor, which has no name here.
"""

from __future__ import annotations

from typing import Any

from model_server.checkpoints.gguf.architecture import Config, GgufArchitecture, place
from model_server.checkpoints.gguf.architectures.llama import (
    INVERSE_FREQUENCIES,
    PROJECTIONS,
    TENSORS,
    feed_forward,
)
from model_server.checkpoints.gguf.facts import Facts, Key
from model_server.checkpoints.gguf.heads import (
    DECODER,
    layer_types,
    read_layer_types,
    read_window,
    window_metadata,
)
from model_server.checkpoints.gguf.rope import read_rotary_heads, rotary_heads_metadata

_PERIOD = 2  # of the layers, from the second on, that see everything


def _more_config(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    more = read_rotary_heads(facts, config)
    if more["rope_scaling"]:
        more["rope_scaling"] |= {"truncate": False}  # as published; files do not say it
    return more | {
        "sliding_window": read_window(facts),
        "layer_types": read_layer_types(facts, config["num_hidden_layers"], _PERIOD),
    }


def _more_metadata(config: Config) -> dict[str, Any]:
    kinds = config.get("layer_types") or layer_types(config["num_hidden_layers"], _PERIOD)
    window = window_metadata(config.get("sliding_window", 128), kinds, _PERIOD)
    given = config.get("rope_scaling") or config.get("rope_parameters") or {}
    scaling = {key: value for key, value in given.items() if key != "truncate"}
    plain = {**config, "rope_scaling": scaling, "rope_parameters": None}
    return rotary_heads_metadata(plain) | window


GPT_OSS = GgufArchitecture(
    name="gpt-oss",
    model_types={"gpt_oss": "GptOssForCausalLM"},
    tensors=TENSORS,
    layer_tensors={
        **PROJECTIONS,
        "attn_norm": place("input_layernorm"),
        "attn_sinks.weight": place("self_attn.sinks"),
        "post_attention_norm": place("post_attention_layernorm"),
        "ffn_gate_inp": place("mlp.router"),
        **feed_forward("mlp.experts.{e}", "_exps"),
    },
    keys=(
        *DECODER,
        Key("num_local_experts", "expert_count"),
        Key("num_experts_per_tok", "expert_used_count"),
    ),
    fixed={
        "attention_bias": True,
        "experts_apart": True,
        "hidden_act": "silu",
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
    },
    more_config=_more_config,
    more_metadata=_more_metadata,
    ignored=("expert_feed_forward_length",),  # as feed_forward_length
    dropped=INVERSE_FREQUENCIES,
)
