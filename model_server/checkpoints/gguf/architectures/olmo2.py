"""OLMo 2, OLMo 3 and EXAONE 4: norms after attention and feed-forward; rows are as published.

llama.cpp treats OLMo 3 as an OLMo 2 with windows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.checkpoints.gguf.architecture import Config, GgufArchitecture, TensorPlace, place
from model_server.checkpoints.gguf.architectures.llama import (
    HEAD_NORMS,
    INVERSE_FREQUENCIES,
    PROJECTIONS,
    TENSORS,
    feed_forward,
)
from model_server.checkpoints.gguf.facts import Facts
from model_server.checkpoints.gguf.heads import (
    DECODER,
    FULL,
    SLIDING,
    layer_types,
    read_layer_types,
    read_window,
    window_metadata,
)
from model_server.checkpoints.gguf.rope import (
    read_rotary_heads,
    rope_factors,
    rope_type,
    rotary_heads_metadata,
)
from sax.errors import CheckpointError

_LOCAL_THETA = "rope.freq_base_swa"
_PERIOD = 4  # every fourth layer of OLMo 3 and EXAONE 4 sees everything
_LAYER: Mapping[str, TensorPlace] = {
    **PROJECTIONS,
    **HEAD_NORMS,
    **feed_forward(),
    "post_attention_norm": place("post_attention_layernorm"),
    "post_ffw_norm": place("post_feedforward_layernorm"),
}


def _read_windows(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    layers, window = config["num_hidden_layers"], read_window(facts)
    kinds = read_layer_types(facts, layers, _PERIOD) if window else [FULL] * layers
    return {"layer_types": kinds, "sliding_window": window}


def _window_metadata(config: Config) -> dict[str, Any]:
    given = config.get("sliding_window_pattern")
    period = given if isinstance(given, int) else _PERIOD
    kinds = config.get("layer_types") or layer_types(config["num_hidden_layers"], period)
    return window_metadata(config.get("sliding_window", 4096), kinds, _PERIOD)


def _read_olmo(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    more = read_rotary_heads(facts, config)
    if not read_window(facts):
        return more
    local = {"rope_type": "default", "rope_theta": facts.number(_LOCAL_THETA, more["rope_theta"])}
    whole = {"rope_type": "default", **(more.pop("rope_scaling") or {})}
    ropes = {FULL: whole | {"rope_theta": more.pop("rope_theta")}, SLIDING: local}
    olmo3 = {"model_type": "olmo3", "rope_parameters": ropes}
    return more | _read_windows(facts, config) | olmo3


def _olmo_metadata(config: Config) -> dict[str, Any]:
    if config["model_type"] == "olmo2":
        return rotary_heads_metadata(config)
    windows = _window_metadata(config)
    if not windows:
        raise CheckpointError("an olmo3 model without sliding layers cannot be written as GGUF")
    return rotary_heads_metadata(_with_old_rope(config)) | windows


def _with_old_rope(config: Config) -> Config:
    """Flatten transformers 5's rope_parameters, which has one entry per layer type."""
    given = dict(config.get("rope_parameters") or {})
    if FULL not in given:
        return config
    whole, local = given[FULL], given.get(SLIDING) or {}
    if rope_type(local) != "default" or local.get("rope_theta") != whole.get("rope_theta"):
        raise CheckpointError("sliding layers with a rope of their own cannot be written as GGUF")
    return {**config, "rope_parameters": whole}


def _exaone_metadata(config: Config) -> dict[str, Any]:
    return rotary_heads_metadata(config) | _window_metadata(config)


OLMO2 = GgufArchitecture(
    name="olmo2",
    model_types={"olmo2": "Olmo2ForCausalLM", "olmo3": "Olmo3ForCausalLM"},
    tensors=TENSORS,
    layer_tensors=_LAYER,
    keys=DECODER,
    fixed={"hidden_act": "silu", "attention_bias": False},
    more_config=_read_olmo,
    more_metadata=_olmo_metadata,
    factors=rope_factors,
    dropped=INVERSE_FREQUENCIES,
)
EXAONE4 = GgufArchitecture(
    name="exaone4",
    model_types={"exaone4": "Exaone4ForCausalLM"},
    tensors=TENSORS,
    layer_tensors=_LAYER,
    keys=DECODER,
    fixed={"hidden_act": "silu", "attention_bias": False},
    more_config=lambda facts, config: (
        read_rotary_heads(facts, config) | _read_windows(facts, config)
    ),
    more_metadata=_exaone_metadata,
    factors=rope_factors,
)
