"""Llama, SmolLM, Mistral, and Mixtral, which llama.cpp treats as a Llama with experts.

llama.cpp rotates neighbouring rows of a head, Hugging Face the rows of its two halves, so the
converter reorders the rows of queries and keys. It drops Mistral's window, which llama.cpp does not
implement; here the window is written and read under GGUF's own key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.checkpoints.gguf.architecture import (
    Config,
    GgufArchitecture,
    TensorPlace,
    optional,
    place,
    rotated,
)
from model_server.checkpoints.gguf.facts import Facts, Key
from model_server.checkpoints.gguf.heads import DECODER, layer_types, read_window, window_metadata
from model_server.checkpoints.gguf.rope import (
    read_rotary_heads,
    rope_factors,
    rotary_heads_metadata,
)

TENSORS: Mapping[str, TensorPlace] = {
    "token_embd": place("model.embed_tokens"),
    "output_norm": place("model.norm"),
    "output": place("lm_head", needed=optional),
}
PROJECTIONS: Mapping[str, TensorPlace] = {
    "attn_q": place("self_attn.q_proj"),
    "attn_k": place("self_attn.k_proj"),
    "attn_v": place("self_attn.v_proj"),
    "attn_output": place("self_attn.o_proj"),
}
NORMS: Mapping[str, TensorPlace] = {
    "attn_norm": place("input_layernorm"),
    "ffn_norm": place("post_attention_layernorm"),
}
HEAD_NORMS: Mapping[str, TensorPlace] = {
    "attn_q_norm": place("self_attn.q_norm"),
    "attn_k_norm": place("self_attn.k_norm"),
}
# Stored by the first exporters although every implementation computes it.
INVERSE_FREQUENCIES = re.compile(r".*rotary_emb\.inv_freq")
_EXPERTS = Key("num_local_experts", "expert_count", default=None)


def feed_forward(name: str = "mlp", suffix: str = "", **rest: Any) -> dict[str, TensorPlace]:
    """Return the three matrices of a gated feed-forward below `name`; `rest`: of `TensorPlace`."""
    parts = ("gate", "up", "down")
    return {f"ffn_{part}{suffix}": place(f"{name}.{part}_proj", **rest) for part in parts}


def plus_one(places: Mapping[str, TensorPlace]) -> dict[str, TensorPlace]:
    """Return the places of norms that the converter added 1 to."""
    return {stem: replace(at, plus=1.0) for stem, at in places.items()}


def _mixtral(config: Config, layer: int) -> bool:
    return "num_local_experts" in config


def _dense(config: Config, layer: int) -> bool:
    return not _mixtral(config, layer)


def _more_config(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    more = read_rotary_heads(facts, config)
    window, experts = read_window(facts), facts.get("expert_count")
    if experts:
        return more | {
            "model_type": "mixtral",
            "num_local_experts": facts.value(_EXPERTS),
            "num_experts_per_tok": facts.whole("expert_used_count"),
            "sliding_window": window,
        }
    if window:
        return more | {"model_type": "mistral", "sliding_window": window}
    biases = {"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"}
    return more | {key: facts.has(name) for key, name in biases.items()}


def _more_metadata(config: Config) -> dict[str, Any]:
    more = rotary_heads_metadata(config)
    if config["model_type"] == "llama":
        return more
    everywhere = layer_types(config["num_hidden_layers"], 0)
    more |= window_metadata(config.get("sliding_window"), everywhere, 0)
    if config["model_type"] == "mixtral":
        more |= {
            "expert_count": config["num_local_experts"],
            "expert_used_count": config["num_experts_per_tok"],
        }
    return more


_EXPERT = "block_sparse_moe.experts.{e}"
LLAMA = GgufArchitecture(
    name="llama",
    model_types={
        "llama": "LlamaForCausalLM",
        "mistral": "MistralForCausalLM",
        "mixtral": "MixtralForCausalLM",
    },
    tensors=TENSORS,
    layer_tensors={
        **NORMS,
        **PROJECTIONS,
        "attn_q": place("self_attn.q_proj", order=rotated("num_attention_heads")),
        "attn_k": place("self_attn.k_proj", order=rotated("num_key_value_heads")),
        **feed_forward(needed=_dense),
        "ffn_gate_inp": place("block_sparse_moe.gate", needed=_mixtral),
        "ffn_gate_exps": place(f"{_EXPERT}.w1", needed=_mixtral),
        "ffn_down_exps": place(f"{_EXPERT}.w2", needed=_mixtral),
        "ffn_up_exps": place(f"{_EXPERT}.w3", needed=_mixtral),
    },
    keys=DECODER,
    fixed={"hidden_act": "silu"},
    more_config=_more_config,
    more_metadata=_more_metadata,
    factors=rope_factors,
    dropped=INVERSE_FREQUENCIES,
)
