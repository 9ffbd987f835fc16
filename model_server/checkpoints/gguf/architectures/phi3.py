"""Phi-3, Phi-3.5 and Phi-4 (mini): q/k/v and gate/up stay fused, as published."""

from __future__ import annotations

from typing import Any

from model_server.checkpoints.gguf.architecture import Config, GgufArchitecture, place
from model_server.checkpoints.gguf.architectures.llama import INVERSE_FREQUENCIES, NORMS, TENSORS
from model_server.checkpoints.gguf.facts import Facts
from model_server.checkpoints.gguf.heads import (
    DECODER,
    head_dim,
    heads_metadata,
    layer_types,
    read_partly_rotated_heads,
    read_window,
    window_metadata,
)
from model_server.checkpoints.gguf.rope import longrope_factors, longrope_metadata, read_longrope


def _more_config(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    more = read_partly_rotated_heads(facts, config)
    rotated = more.pop("rotated")
    return {
        **more,
        **read_longrope(facts, rotated, config["max_position_embeddings"]),
        "partial_rotary_factor": rotated / more["head_dim"],
        "sliding_window": read_window(facts),
    }


def _more_metadata(config: Config) -> dict[str, Any]:
    everywhere = layer_types(config["num_hidden_layers"], 0)
    return {
        **heads_metadata(config, _rotated(config)),
        **longrope_metadata(config),
        **window_metadata(config.get("sliding_window"), everywhere, 0),
    }


def _rotated(config: Config) -> int:
    given = (config.get("rope_parameters") or {}).get("partial_rotary_factor")
    return int(head_dim(config) * (given or config.get("partial_rotary_factor") or 1.0))


PHI3 = GgufArchitecture(
    name="phi3",
    model_types={"phi3": "Phi3ForCausalLM"},
    tensors=TENSORS,
    layer_tensors={
        **NORMS,
        "attn_qkv": place("self_attn.qkv_proj"),
        "attn_output": place("self_attn.o_proj"),
        "ffn_up": place("mlp.gate_up_proj"),
        "ffn_down": place("mlp.down_proj"),
    },
    keys=DECODER,
    fixed={"hidden_act": "silu", "attention_bias": False},
    more_config=_more_config,
    more_metadata=_more_metadata,
    factors=longrope_factors,
    dropped=INVERSE_FREQUENCIES,
)
