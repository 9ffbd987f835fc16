"""OLMo 2: norms after attention and feed-forward; rows and values are as published."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from model_server.checkpoints.gguf.architecture import Config, GgufArchitecture, place
from model_server.checkpoints.gguf.architectures.llama import (
    ATTENTION,
    FEED_FORWARD,
    INVERSE_FREQUENCIES,
    TENSORS,
)
from model_server.checkpoints.gguf.facts import Facts
from model_server.checkpoints.gguf.heads import DECODER, heads_metadata, read_heads, read_window
from model_server.checkpoints.gguf.rope import read_rope, rope_factors, rope_metadata
from sax.errors import CheckpointError


def _more_config(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    if read_window(facts):
        raise CheckpointError("it is an OLMo 3 (it has sliding windows), which is not supported")
    more = read_heads(facts, config)
    return more | read_rope(facts, more["head_dim"])


def _more_metadata(config: Config) -> dict[str, Any]:
    return heads_metadata(config) | rope_metadata(config)


OLMO2 = GgufArchitecture(
    name="olmo2",
    model_types=MappingProxyType({"olmo2": "Olmo2ForCausalLM"}),
    tensors=TENSORS,
    layer_tensors=MappingProxyType(
        {
            **{name: ATTENTION[name] for name in ("attn_q", "attn_k", "attn_v", "attn_output")},
            **FEED_FORWARD,
            "attn_q_norm": place("self_attn.q_norm"),
            "attn_k_norm": place("self_attn.k_norm"),
            "post_attention_norm": place("post_attention_layernorm"),
            "post_ffw_norm": place("post_feedforward_layernorm"),
        }
    ),
    keys=DECODER,
    fixed=MappingProxyType({"hidden_act": "silu", "attention_bias": False}),
    more_config=_more_config,
    more_metadata=_more_metadata,
    factors=rope_factors,
    dropped=INVERSE_FREQUENCIES,
)
