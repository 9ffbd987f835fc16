"""Gemma 1, 2 and 3. Files store norm weights plus one, so that a norm just multiplies.

llama.cpp's files do not hold the attention scale: it recognises the largest models by their number
of layers. Files written here have it under GGUF's own key, which is read where present.
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
from model_server.checkpoints.gguf.architectures.llama import HEAD_NORMS, PROJECTIONS, feed_forward
from model_server.checkpoints.gguf.facts import Facts, Key
from model_server.checkpoints.gguf.heads import (
    DECODER,
    SLIDING,
    layer_types,
    read_layer_types,
    read_window,
    window_metadata,
)
from model_server.checkpoints.gguf.rope import read_rotary_heads, rotary_heads_metadata
from sax.errors import CheckpointError

_GELU = "gelu_pytorch_tanh"
_FIXED = {"hidden_activation": _GELU, "attention_bias": False, "tie_word_embeddings": True}
_HEAD = re.compile(r"lm_head\.weight")  # tied: a copy of the embedding
_LOCAL_THETA = "rope.freq_base_swa"
_SCALE = "attention.scale"
_CAPS = (
    Key("attn_logit_softcapping", "attn_logit_softcapping", float, 50.0),
    Key("final_logit_softcapping", "final_logit_softcapping", float, 30.0),
)


def _norm(name: str) -> TensorPlace:
    return place(name, plus=1.0)


_TENSORS: Mapping[str, TensorPlace] = {
    "token_embd": place("model.embed_tokens"),
    "output_norm": _norm("model.norm"),
}
_LAYER: Mapping[str, TensorPlace] = {
    **PROJECTIONS,
    **feed_forward(),
    "attn_norm": _norm("input_layernorm"),
}
_LAYER2: Mapping[str, TensorPlace] = {
    **_LAYER,
    "post_attention_norm": _norm("post_attention_layernorm"),
    "ffn_norm": _norm("pre_feedforward_layernorm"),
    "post_ffw_norm": _norm("post_feedforward_layernorm"),
}


def _read_scale(facts: Facts, config: Config, head_dim: int, largest: int) -> dict[str, Any]:
    """Return query_pre_attn_scalar; `largest` is the layer count of the family's largest model."""
    if facts.get(_SCALE) is not None:
        return {"query_pre_attn_scalar": round(facts.number(_SCALE) ** -2, 3)}
    if config["num_hidden_layers"] != largest:
        return {"query_pre_attn_scalar": head_dim}
    return {"query_pre_attn_scalar": config["hidden_size"] // config["num_attention_heads"]}


def _scale_metadata(config: Config) -> dict[str, Any]:
    return {_SCALE: float(config.get("query_pre_attn_scalar") or 256) ** -0.5}


def _read_gemma2(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    more = read_rotary_heads(facts, config)
    return {
        **more,
        **_read_scale(facts, config, more["head_dim"], 46),
        "sliding_window": read_window(facts) or 4096,
        "layer_types": read_layer_types(facts, config["num_hidden_layers"], 2),
    }


def _gemma2_metadata(config: Config) -> dict[str, Any]:
    for cap in _CAPS:
        if cap.name in config and not config[cap.name]:
            raise CheckpointError(f"a gemma2 model without {cap.name} cannot be written as GGUF")
    kinds = config.get("layer_types") or layer_types(config["num_hidden_layers"], 2)
    return {
        **rotary_heads_metadata(config),
        **_scale_metadata(config),
        **window_metadata(config.get("sliding_window") or 4096, kinds, 2),
    }


def _read_gemma3(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    more, window = read_rotary_heads(facts, config), read_window(facts)
    layers = config["num_hidden_layers"]
    return {
        **more,
        **_read_scale(facts, config, more["head_dim"], 62),
        "attn_logit_softcapping": None,
        "rope_local_base_freq": facts.number(_LOCAL_THETA, 10000.0),
        "sliding_window": window or 4096,
        "layer_types": read_layer_types(facts, layers, 6 if window else 1),
    }


def _gemma3_metadata(config: Config) -> dict[str, Any]:
    config = _with_old_rope(config)
    period = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or 6
    kinds = config.get("layer_types") or layer_types(config["num_hidden_layers"], period)
    return {
        **rotary_heads_metadata(config),
        **_scale_metadata(config),
        **window_metadata(config.get("sliding_window") or 4096, kinds, 6),
        _LOCAL_THETA: float(config.get("rope_local_base_freq") or 10000.0),
    }


def _with_old_rope(config: Config) -> dict[str, Any]:
    """Flatten transformers 5's rope_parameters, which has one entry per layer type."""
    given = dict(config.get("rope_parameters") or {})
    if "full_attention" not in given:
        return {"rope_theta": 1000000.0, **config}
    whole, local = given["full_attention"], given[SLIDING]
    if local.get("rope_type", "default") != "default":
        raise CheckpointError("sliding layers with rope scaling cannot be written as GGUF")
    return {
        **config,
        "rope_parameters": whole,
        "rope_theta": whole["rope_theta"],
        "rope_local_base_freq": local["rope_theta"],
    }


GEMMA = GgufArchitecture(
    name="gemma",
    model_types={"gemma": "GemmaForCausalLM"},
    tensors=_TENSORS,
    layer_tensors={**_LAYER, "ffn_norm": _norm("post_attention_layernorm")},
    keys=DECODER,
    # The first config.json files said gelu but meant this; hidden_activation later corrected it.
    fixed=_FIXED,
    more_config=lambda facts, config: read_rotary_heads(facts, config) | {"hidden_act": _GELU},
    more_metadata=rotary_heads_metadata,
    dropped=_HEAD,
)
GEMMA2 = GgufArchitecture(
    name="gemma2",
    model_types={"gemma2": "Gemma2ForCausalLM"},
    tensors=_TENSORS,
    layer_tensors=_LAYER2,
    keys=(
        *DECODER,
        *_CAPS,
    ),
    fixed=_FIXED,
    more_config=_read_gemma2,
    more_metadata=_gemma2_metadata,
    dropped=_HEAD,
)
GEMMA3 = GgufArchitecture(
    name="gemma3",
    model_types={"gemma3_text": "Gemma3ForCausalLM"},
    tensors={**_TENSORS, "output": place("lm_head", needed=optional)},
    layer_tensors={
        **_LAYER2,
        **{stem: _norm(at.name) for stem, at in HEAD_NORMS.items()},
    },
    keys=(
        *DECODER,
        Key("final_logit_softcapping", "final_logit_softcapping", float, None),
    ),
    fixed={
        "hidden_activation": _GELU,
        "attention_bias": False,
        "use_bidirectional_attention": False,
    },
    more_config=_read_gemma3,
    more_metadata=_gemma3_metadata,
    ignored=("attn_logit_softcapping",),  # as in config.json: stored, and applied nowhere
)
