"""GLM-4 and GLM-4-0414: the feed-forward's first matrices stay fused, part of a head rotates.

Heads rotate neighbouring dimensions, as llama.cpp does, so rows are as published.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.checkpoints.gguf.architecture import GgufArchitecture, TensorPlace, place
from model_server.checkpoints.gguf.architectures.llama import NORMS, PROJECTIONS, TENSORS
from model_server.checkpoints.gguf.facts import Facts
from model_server.checkpoints.gguf.heads import DECODER
from model_server.checkpoints.gguf.rope import partly_rotated_metadata, read_partly_rotated

_LAYER: Mapping[str, TensorPlace] = {
    **NORMS,
    **PROJECTIONS,
    "ffn_up": place("mlp.gate_up_proj"),
    "ffn_down": place("mlp.down_proj"),
}


def _more_config(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    more = read_partly_rotated(facts, config)
    return more | {"attention_bias": facts.has("blk.0.attn_q.bias")}


def _more_metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    return partly_rotated_metadata(config, 0.5)


CHATGLM = GgufArchitecture(
    name="chatglm",
    model_types={"glm": "GlmForCausalLM"},
    tensors=TENSORS,
    layer_tensors=_LAYER,
    keys=DECODER,
    fixed={"hidden_act": "silu"},
    more_config=_more_config,
    more_metadata=_more_metadata,
)
GLM4 = GgufArchitecture(
    name="glm4",
    model_types={"glm4": "Glm4ForCausalLM"},
    tensors=TENSORS,
    layer_tensors={
        **_LAYER,
        "post_attention_norm": place("post_self_attn_layernorm"),
        "post_ffw_norm": place("post_mlp_layernorm"),
    },
    keys=DECODER,
    fixed={"hidden_act": "silu"},
    more_config=_more_config,
    more_metadata=_more_metadata,
)
