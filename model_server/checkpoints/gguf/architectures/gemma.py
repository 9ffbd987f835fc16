"""Gemma, 1 to 4. Files of 1 to 3 hold norm weights plus one, so that a norm just multiplies.

llama.cpp's files do not hold the attention scale: it recognises the largest models by their number
of layers. Files written here have it under GGUF's own key, which is read where present.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np

from model_server.checkpoints.gguf.architecture import (
    Config,
    GgufArchitecture,
    JoinedPlace,
    TensorPlace,
    optional,
    place,
)
from model_server.checkpoints.gguf.architectures.llama import HEAD_NORMS, PROJECTIONS, feed_forward
from model_server.checkpoints.gguf.facts import Facts, Key
from model_server.checkpoints.gguf.heads import (
    DECODER,
    FULL,
    RMS_EPS,
    SIZES,
    SLIDING,
    layer_types,
    read_layer_types,
    read_window,
    window_metadata,
)
from model_server.checkpoints.gguf.rope import (
    LLAMA3_FACTORS,
    read_rotary_heads,
    rotary_heads_metadata,
)
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


# --- Gemma 3n and 4, whose last layers borrow keys and values: read, and not written.
#
# Norms are as published: these do not add one.

_KEY_HEADS = "attention.head_count_kv"
_UNTURNED = 1e29  # factors above it stand for dimensions that do not rotate
_LENDING_KEYS = (
    *SIZES,
    RMS_EPS,
    Key("num_kv_shared_layers", "attention.shared_kv_layers", default=0, least=0),
    Key("hidden_size_per_layer_input", "embedding_length_per_layer_input", default=0, least=0),
    Key("final_logit_softcapping", "final_logit_softcapping", float, None),
    Key("sliding_window", "attention.sliding_window"),
)
_LENDING_TENSORS: Mapping[str, TensorPlace] = {
    "token_embd": place("model.embed_tokens"),
    "output_norm": place("model.norm"),
    "output": place("lm_head", needed=optional),
    "per_layer_token_embd": place("model.embed_tokens_per_layer", needed=optional),
    "per_layer_model_proj": place("model.per_layer_model_projection", needed=optional),
    "per_layer_proj_norm": place("model.per_layer_projection_norm", needed=optional),
}


def _lends(config: Config, layer: int) -> bool:
    return layer < config["num_hidden_layers"] - config["num_kv_shared_layers"]


def _own(stem: str) -> TensorPlace:
    return place({**PROJECTIONS, **HEAD_NORMS}[stem].name, needed=_lends)


_LENDING_LAYER: Mapping[str, TensorPlace] = {
    **PROJECTIONS,
    **HEAD_NORMS,
    **{stem: _own(stem) for stem in ("attn_k", "attn_k_norm")},
    "attn_v": place("self_attn.v_proj", needed=optional),  # keys may be the values
    **feed_forward(),
    "attn_norm": place("input_layernorm"),
    "post_attention_norm": place("post_attention_layernorm"),
    "ffn_norm": place("pre_feedforward_layernorm"),
    "post_ffw_norm": place("post_feedforward_layernorm"),
    "inp_gate": place("per_layer_input_gate", needed=optional),
    "proj": place("per_layer_projection", needed=optional),
    "post_norm": place("post_per_layer_input_norm", needed=optional),
}
_LENDING_FIXED = {"hidden_activation": "gelu_pytorch_tanh", "attention_bias": False}


def _check_same(facts: Facts, size: int, *suffixes: str) -> None:
    """Raise CheckpointError if values of a head, or those that rotate, are not as its keys."""
    for suffix in suffixes:
        if (given := facts.whole(suffix, size)) != size:
            raise CheckpointError(f"its {suffix} is {given}; it must be that of the keys, {size}")


def _widths(facts: Facts, layers: int) -> list[int]:
    return [facts.rows(f"blk.{layer}.ffn_up.weight") for layer in range(layers)]


def _vocabulary(facts: Facts) -> dict[str, Any]:
    name = "per_layer_token_embd.weight"
    return {"vocab_size_per_layer_input": facts.rows(name)} if facts.has(name) else {}


# --- Gemma 4


def _read_gemma4(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    layers = config["num_hidden_layers"]
    kinds = read_layer_types(facts, layers, 6)
    widths = _widths(facts, layers)
    counts = _key_heads(facts, layers)
    slides = [kind == SLIDING for kind in kinds]
    local, whole = _alike(counts, slides, SLIDING), _alike(counts, [not it for it in slides], FULL)
    size = facts.whole("attention.key_length")
    local_size = facts.whole("attention.key_length_swa", size)
    _check_same(facts, size, "attention.value_length", "rope.dimension_count")
    _check_same(facts, local_size, "attention.value_length_swa", "rope.dimension_count_swa")
    return {
        "layer_types": kinds,
        "intermediate_size": widths[0],
        "use_double_wide_mlp": widths[-1] == 2 * widths[0],
        "head_dim": local_size,
        "global_head_dim": size,
        "num_key_value_heads": local or whole,
        "num_global_key_value_heads": whole or local,
        "attention_k_eq_v": _keys_are_values(facts, slides),
        "rope_parameters": _ropes(facts, size),
        **_vocabulary(facts),
        **_experts(facts),
    }


def _key_heads(facts: Facts, layers: int) -> list[Any]:
    """Return what the file says of each layer; one number is of all."""
    if isinstance(facts.get_any(_KEY_HEADS), list | np.ndarray):
        return facts.listed(_KEY_HEADS, layers)
    return [facts.whole(_KEY_HEADS)] * layers


def _alike(counts: list[Any], chosen: list[bool], kind: str) -> int | None:
    """Return the key heads of the chosen layers. Raises CheckpointError if they differ."""
    found = {count for count, its in zip(counts, chosen, strict=True) if its}
    if len(found) > 1 or any(type(count) is not int or count < 1 for count in found):
        raise CheckpointError(f"its layers of {kind} have {[*found]} key heads, not one")
    return found.pop() if found else None


def _keys_are_values(facts: Facts, slides: list[bool]) -> bool:
    whole = [layer for layer, its in enumerate(slides) if not its]
    return any(
        facts.has(f"blk.{layer}.attn_k.weight") and not facts.has(f"blk.{layer}.attn_v.weight")
        for layer in whole
    )


def _ropes(facts: Facts, size: int) -> dict[str, Any]:
    factors = facts.factors.get(LLAMA3_FACTORS)
    turned = size // 2
    if factors is not None:
        turned = int((factors < _UNTURNED).sum())
        if factors.shape != (size // 2,) or (factors[:turned] != 1).any():
            raise CheckpointError(f"its {LLAMA3_FACTORS} are not 1 and then without end")
    return {
        FULL: {
            "rope_type": "proportional",
            "partial_rotary_factor": 2 * turned / size,
            "rope_theta": facts.number("rope.freq_base", 1e6),
        },
        SLIDING: {"rope_type": "default", "rope_theta": facts.number(_LOCAL_THETA, 1e4)},
    }


def _experts(facts: Facts) -> dict[str, Any]:
    count = facts.get("expert_count", 0)
    if not count:
        return {"enable_moe_block": False}
    return {
        "enable_moe_block": True,
        "num_experts": count,
        "top_k_experts": facts.whole("expert_used_count"),
        "moe_intermediate_size": facts.whole("expert_feed_forward_length"),
    }


def _sparse(config: Config, layer: int) -> bool:
    return config["enable_moe_block"]


GEMMA4 = GgufArchitecture(
    name="gemma4",
    model_types={"gemma4_text": "Gemma4ForCausalLM"},
    tensors=_LENDING_TENSORS,
    layer_tensors={
        **_LENDING_LAYER,
        "layer_output_scale.weight": place("layer_scalar"),
        "post_ffw_norm_1": place("post_feedforward_layernorm_1", needed=_sparse),
        "post_ffw_norm_2": place("post_feedforward_layernorm_2", needed=_sparse),
        "pre_ffw_norm_2": place("pre_feedforward_layernorm_2", needed=_sparse),
        "ffn_gate_inp": place("router.proj", needed=_sparse),
        "ffn_gate_inp.scale": place("router.scale", bare=True, needed=_sparse),
        "ffn_down_exps.scale": place("router.per_expert_scale", bare=True, needed=_sparse),
    },
    joined=(
        JoinedPlace(
            name="experts.gate_up_proj", parts=("ffn_gate_up_exps.weight",), needed=_sparse
        ),
        JoinedPlace(name="experts.down_proj", parts=("ffn_down_exps.weight",), needed=_sparse),
    ),
    keys=_LENDING_KEYS,
    fixed=_LENDING_FIXED,
    more_config=_read_gemma4,
    ignored=("feed_forward_length",),  # as the tensors are
)

# --- Gemma 3n


def _read_gemma3n(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    layers = config["num_hidden_layers"]
    size = facts.whole(
        "attention.key_length", config["hidden_size"] // config["num_attention_heads"]
    )
    _check_same(facts, size, "attention.value_length", "rope.dimension_count")
    return {
        "head_dim": size,
        "num_key_value_heads": facts.whole("attention.head_count_kv"),
        "intermediate_size": _widths(facts, layers),
        "layer_types": read_layer_types(facts, layers, 5),
        "rope_theta": facts.number("rope.freq_base", 1e6),
        "rope_local_base_freq": facts.number(_LOCAL_THETA, 1e4),
        "activation_sparsity_pattern": _shares(facts, layers),
        "altup_correct_scale": True,
        "laurel_rank": facts.rows("blk.0.laurel_l.weight"),
        **_vocabulary(facts),
    }


def _shares(facts: Facts, layers: int) -> list[float]:
    """Return the share of gates that each layer closes, of which files hold the normal quantile."""
    scales = facts.listed("activation_sparsity_scale", layers, [-math.inf] * layers)
    if not all(isinstance(scale, float) and not math.isnan(scale) for scale in scales):
        raise CheckpointError("its activation_sparsity_scale has something that is no number")
    usual = statistics.NormalDist()
    shares = [0.0 if math.isinf(scale) else usual.cdf(scale) for scale in scales]
    return [round(share, 6) for share in shares]


_ALTUP = {
    "altup_correct_coef": "altup.correction_coefs",
    "altup_correct_scale.weight": "altup.correct_output_scale",
    "altup_predict_coef": "altup.prediction_coefs",
    "altup_router": "altup.modality_router",
    "altup_router_norm": "altup.router_norm",
    "laurel_l": "laurel.linear_left",
    "laurel_r": "laurel.linear_right",
    "laurel_post_norm": "laurel.post_laurel_norm",
}
GEMMA3N = GgufArchitecture(
    name="gemma3n",
    model_types={"gemma3n_text": "Gemma3nForCausalLM"},
    tensors={
        **_LENDING_TENSORS,
        "altup_proj": place("model.altup_projections.{e}"),
        "altup_unembd_proj": place("model.altup_unembed_projections.{e}"),
    },
    layer_tensors={**_LENDING_LAYER, **{stem: place(name) for stem, name in _ALTUP.items()}},
    keys=(
        *_LENDING_KEYS,
        Key("altup_active_idx", "altup.active_idx", default=0, least=0),
        Key("altup_num_inputs", "altup.num_inputs", default=4),
    ),
    fixed=_LENDING_FIXED,
    more_config=_read_gemma3n,
    ignored=("feed_forward_length",),
)
