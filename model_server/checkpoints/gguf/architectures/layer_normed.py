"""StarCoder2 and Phi-2: layer norms and plain feed-forwards; rows and values are as published.

llama.cpp implements no window for StarCoder2; here it is written and read under GGUF's own key.
"""

from __future__ import annotations

from typing import Any

from model_server.checkpoints.gguf.architecture import Config, GgufArchitecture, place
from model_server.checkpoints.gguf.architectures.llama import NORMS, PROJECTIONS, TENSORS
from model_server.checkpoints.gguf.facts import Facts, Key
from model_server.checkpoints.gguf.heads import (
    FFW,
    SIZES,
    layer_types,
    read_window,
    window_metadata,
)
from model_server.checkpoints.gguf.rope import (
    partly_rotated_metadata,
    read_partly_rotated,
    read_rotary_heads,
    rope_factors,
    rotary_heads_metadata,
)

_EPSILON = "attention.layer_norm_epsilon"


def _read_starcoder2(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    return read_rotary_heads(facts, config) | {
        "sliding_window": read_window(facts),
        "use_bias": facts.has("blk.0.attn_q.bias"),
    }


def _starcoder2_metadata(config: Config) -> dict[str, Any]:
    everywhere = layer_types(config["num_hidden_layers"], 0)
    window = window_metadata(config.get("sliding_window"), everywhere, 0)
    return rotary_heads_metadata(config) | window


def _phi2_metadata(config: Config) -> dict[str, Any]:
    return partly_rotated_metadata(config, 0.5)


STARCODER2 = GgufArchitecture(
    name="starcoder2",
    model_types={"starcoder2": "Starcoder2ForCausalLM"},
    tensors=TENSORS,
    layer_tensors={
        **NORMS,
        **PROJECTIONS,
        "ffn_up": place("mlp.c_fc"),
        "ffn_down": place("mlp.c_proj"),
    },
    keys=(*SIZES, FFW, Key("norm_epsilon", _EPSILON, float, 1e-5)),
    fixed={"hidden_act": "gelu_pytorch_tanh"},
    more_config=_read_starcoder2,
    more_metadata=_starcoder2_metadata,
    factors=rope_factors,
)
PHI2 = GgufArchitecture(
    name="phi2",
    model_types={"phi": "PhiForCausalLM"},
    tensors={
        "token_embd": place("model.embed_tokens"),
        "output_norm": place("model.final_layernorm"),
        "output": place("lm_head"),
    },
    layer_tensors={
        **PROJECTIONS,
        "attn_norm": place("input_layernorm"),
        "attn_output": place("self_attn.dense"),
        "ffn_up": place("mlp.fc1"),
        "ffn_down": place("mlp.fc2"),
    },
    keys=(*SIZES, FFW, Key("layer_norm_eps", _EPSILON, float, 1e-5)),
    fixed={"hidden_act": "gelu_new", "qk_layernorm": False},
    more_config=read_partly_rotated,
    more_metadata=_phi2_metadata,
)
