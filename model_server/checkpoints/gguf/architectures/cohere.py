"""Command R and Command R7B: tied heads, layer norms without bias; rows are as published.

Every fourth layer of Command R7B has no window; files take this for granted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from model_server.checkpoints.gguf.architecture import (
    Config,
    GgufArchitecture,
    TensorPlace,
    optional,
    place,
)
from model_server.checkpoints.gguf.architectures.llama import PROJECTIONS, feed_forward
from model_server.checkpoints.gguf.facts import Facts, Key
from model_server.checkpoints.gguf.heads import (
    FFW,
    SIZES,
    layer_types,
    read_layer_types,
    read_window,
    window_metadata,
)
from model_server.checkpoints.gguf.rope import (
    read_rotary_heads,
    rope_factors,
    rotary_heads_metadata,
)

_PERIOD, _WINDOW = 4, 4096  # of Command R7B
_TENSORS: Mapping[str, TensorPlace] = {
    "token_embd": place("model.embed_tokens"),
    "output_norm": place("model.norm"),
}
_LAYER: Mapping[str, TensorPlace] = {
    **PROJECTIONS,
    **feed_forward(),
    "attn_norm": place("input_layernorm"),
}
_KEYS = (
    *SIZES,
    FFW,
    Key("layer_norm_eps", "attention.layer_norm_epsilon", float, 1e-5),
    Key("logit_scale", "logit_scale", float, 0.0625),
)
_FIXED = {"hidden_act": "silu", "tie_word_embeddings": True}
_HEAD = re.compile(r"lm_head\.weight")  # tied: a copy of the embedding


def _read_command_r(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    return read_rotary_heads(facts, config) | {
        "attention_bias": facts.has("blk.0.attn_q.bias"),
        "model_max_length": config["max_position_embeddings"],
        "use_qk_norm": facts.has("blk.0.attn_q_norm.weight"),
    }


def _command_r_metadata(config: Config) -> dict[str, Any]:
    context = config.get("model_max_length") or config["max_position_embeddings"]
    return rotary_heads_metadata(config) | {"context_length": context}


def _read_cohere2(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    return read_rotary_heads(facts, config) | {
        "attention_bias": facts.has("blk.0.attn_q.bias"),
        "layer_types": read_layer_types(facts, config["num_hidden_layers"], _PERIOD),
        "sliding_window": read_window(facts) or _WINDOW,
    }


def _cohere2_metadata(config: Config) -> dict[str, Any]:
    period = config.get("sliding_window_pattern") or _PERIOD
    kinds = config.get("layer_types") or layer_types(config["num_hidden_layers"], period)
    window = config.get("sliding_window") or _WINDOW
    return rotary_heads_metadata(config) | window_metadata(window, kinds, _PERIOD)


COMMAND_R = GgufArchitecture(
    name="command-r",
    model_types={"cohere": "CohereForCausalLM"},
    tensors=_TENSORS,
    layer_tensors={
        **_LAYER,
        "attn_q_norm": place("self_attn.q_norm", needed=optional),
        "attn_k_norm": place("self_attn.k_norm", needed=optional),
    },
    keys=_KEYS,
    fixed=_FIXED,
    more_config=_read_command_r,
    more_metadata=_command_r_metadata,
    factors=rope_factors,
    dropped=_HEAD,
)
COHERE2 = GgufArchitecture(
    name="cohere2",
    model_types={"cohere2": "Cohere2ForCausalLM"},
    tensors=_TENSORS,
    layer_tensors=_LAYER,
    keys=_KEYS,
    fixed={**_FIXED, "use_qk_norm": False},
    more_config=_read_cohere2,
    more_metadata=_cohere2_metadata,
    factors=rope_factors,
    dropped=_HEAD,
)
