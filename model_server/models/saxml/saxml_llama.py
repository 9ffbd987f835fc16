"""Saxml's LLaMA classes in lm_cloud: Llama 1, 2, 3 and 3.1 in their usual sizes.

Source: `saxml.server.pax.lm.params.lm_cloud`. Each loads a Llama checkpoint of its sizes. Saxml
fills the classes it marks as tests with random weights whatever the checkpoint; here a given
checkpoint is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families import llama
from model_server.models.recipe import ModelClass
from model_server.models.saxml.saxml_class import (
    SaxmlArchitecture,
    Values,
    mesh,
    saxml_class,
    sizes,
)

_CONFIG = {"model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5}
# From config.json of Meta's Llama 3.1.
_STRETCHED = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def config_of(values: Values, context: int) -> dict[str, Any]:
    """A class's values as a config.json, for random weights."""
    return _CONFIG | {
        "num_hidden_layers": values["NUM_LAYERS"],
        "hidden_size": values["MODEL_DIMS"],
        "intermediate_size": values["HIDDEN_DIMS"],
        "num_attention_heads": values["NUM_HEADS"],
        "num_key_value_heads": values["NUM_KV_HEADS"],
        "head_dim": values["DIMS_PER_HEAD"],
        "vocab_size": values["VOCAB_SIZE"],
        "max_position_embeddings": context,
    }


def sizes_of(keys: ConfigKeys) -> Values:
    """Sizes of a Llama-style config.json under Saxml's names."""
    shape = llama.attention_shape(keys)
    return {
        "NUM_LAYERS": keys.whole("num_hidden_layers"),
        "MODEL_DIMS": shape.embed,
        "HIDDEN_DIMS": keys.whole("intermediate_size"),
        "NUM_HEADS": shape.heads,
        "NUM_KV_HEADS": shape.kv_heads,
        "DIMS_PER_HEAD": shape.head_dim,
        "VOCAB_SIZE": keys.whole("vocab_size"),
    }


def _config_3(values: Values, context: int) -> dict[str, Any]:
    return config_of(values, context) | {"rope_theta": 500000.0}


def _config_31(values: Values, context: int) -> dict[str, Any]:
    return _config_3(values, context) | {"rope_scaling": _STRETCHED}


def _architecture(config: Any) -> SaxmlArchitecture:
    return SaxmlArchitecture(
        configure=llama.configure, config=config, keys=llama.KEYS, sizes=sizes_of
    )


_12, _3, _31 = _architecture(config_of), _architecture(_config_3), _architecture(_config_31)

_BASE: Values = {
    "NUM_KV_HEADS": None,
    "INPUT_SEQ_LEN": 4096,
    "MAX_DECODE_STEPS": 1024,
    "PER_EXAMPLE_MAX_DECODE_STEPS": 128,
    "NUM_SAMPLES": 1,
    "TEMPERATURE": 0.5,
    "TOP_P": 0.95,
    **mesh(1),
}
# 1,024 tokens in, 1,024 out, greedy unless a request says otherwise.
_OFFLINE: Values = {
    "INPUT_SEQ_LEN": 1024,
    "MAX_DECODE_STEPS": 1024,
    "PER_EXAMPLE_MAX_DECODE_STEPS": 1024,
    "TOP_K": 1,
}
_SHORT: Values = {"INPUT_SEQ_LEN": 128, "MAX_DECODE_STEPS": 32}
_INT8: Values = {"QUANTIZE": "int8"}

_7B = {**_BASE, **sizes(32, 4096, 11008, 32)}
_13B = {**_BASE, **sizes(40, 5120, 13824, 40)}
_33B = {**_BASE, **sizes(60, 6656, 17920, 52)}
_65B = {**_BASE, **sizes(80, 8192, 22016, 64)}
_70B = {**_BASE, **sizes(80, 8192, 28672, 64), "NUM_KV_HEADS": 8}
_7B_OFFLINE = {**_7B, **_OFFLINE}
_70B_OFFLINE = {**_70B, **_OFFLINE, **mesh(8)}
_70B_MLPERF = {
    **_70B_OFFLINE,
    **_INT8,
    "NUM_CACHE_SLOTS": 72,
    "TEMPERATURE": 0.0,
    "TOP_P": 1.0,
}
_LLAMA_1_AND_2: Mapping[str, Values] = {
    "LLaMA7BFP16": {**_7B, **_SHORT},
    "LLaMA7BFP16TPUv4": {**_7B, **_SHORT, **mesh(4)},
    "LLaMA7BFP16TPUv5e": {**_7B, **_SHORT, **mesh(4)},
    "LLaMA7B": _7B,
    "LLaMA7BTPUv5e4": {**_7B_OFFLINE, **mesh(4), "BATCH_SIZE": 32},
    "LLaMA7BTPUv5e8": {**_7B_OFFLINE, **mesh(8), "BATCH_SIZE": 32},
    "LLaMA7BTPUv5e16": {**_7B_OFFLINE, **mesh(16), "BATCH_SIZE": 32},
    "LLaMA7BContinuousBatchingTPUv5e4": {**_7B_OFFLINE, **mesh(4), "NUM_CACHE_SLOTS": 16},
    "LLaMA7BContinuousBatchingTPUv5e8": {**_7B_OFFLINE, **mesh(8), "NUM_CACHE_SLOTS": 16},
    "LLaMA7BH100BS8": {**_7B_OFFLINE, "BATCH_SIZE": 8},
    "LLaMA7BH100": {**_7B_OFFLINE, "NUM_CACHE_SLOTS": 16},
    "LLaMA13B": {**_13B, **_INT8},
    "LLaMA33B": {**_33B, **_INT8, **mesh(4)},
    "LLaMA65B": {**_65B, **_INT8, **mesh(4)},
    "LLaMA70BFP16TPUv5e": _70B,
    "LLaMA70BFP16TPUv5e16": {**_70B, **mesh(16)},
    "LLaMA70BFP16TPUv5e32": {**_70B, **mesh(32)},
    "LLaMA70BFP16TPUv5e64": {**_70B, **mesh(64)},
    "LLaMA70BInt8TPUv5e8": _70B_MLPERF,
    "LLaMA70BInt8TokenizedInputTPUv5e8": {**_70B_MLPERF, "TOKENIZED_INPUT": True},
    # Saxml serves only streams of this class; here every model has both.
    "LLaMA70BInt8TokenizedInputTPUv5e8Stream": {
        **_70B_MLPERF,
        "TOKENIZED_INPUT": True,
        "TOKENIZED_OUTPUT": True,
    },
    "LLaMA70BInt8LinearOnlyx8": {**_70B, **_INT8, **mesh(8)},
    # Requests flash decoding, for which Saxml raises NotImplementedError; here it uses our own
    # attention.
    "LLaMA70BFP16H100x8": {**_70B_OFFLINE, "NUM_CACHE_SLOTS": 64},
    "LLaMA70BInt8H100x8": {**_70B_OFFLINE, **_INT8, "NUM_CACHE_SLOTS": 128},
    "LLaMA70BInt8H100x8BS32": {**_70B_OFFLINE, **_INT8, "BATCH_SIZE": 32},
    "LLaMA70BInt8H100x8Fake": {**_70B_OFFLINE, **_INT8, "NUM_CACHE_SLOTS": 128},
}

# In Saxml LLaMA3_8BFP16x1 and LLaMA3_70BFP16x8 inherit the sizes of a 7B model, and
# LLaMA3_70BFP16x16 has Llama 2's vocabulary of 32,000. Here they have the sizes of the model they
# name.
_3_8B = {**_BASE, **sizes(32, 4096, 14336, 32, vocab=128256), "NUM_KV_HEADS": 8}
_3_70B = {**_BASE, **sizes(80, 8192, 28672, 64, vocab=128256), "NUM_KV_HEADS": 8}
_LLAMA_3: Mapping[str, Values] = {
    "LLaMA3_8BFP16x4": {**_3_8B, **mesh(4)},
    "LLaMA3_8BFP16Testx4": {**_3_8B, **mesh(4)},
    "LLaMA3_8BFP16x1": _3_8B,
    "LLaMA3_70BFP16x16": {**_3_70B, **mesh(16)},
    "LLaMA3_70BFP16x8": {**_3_70B, **mesh(8)},
    "LLaMA3_70BInt8LinearOnlyx8": {**_3_70B, **_INT8, **mesh(8)},
}

# Saxml stores the model's 8 KV heads twice each to suit 16 devices; a mesh here copies them where
# needed, and the published checkpoints have 8.
_405B = {**_BASE, **sizes(126, 16384, 53248, 128, vocab=128256), "NUM_KV_HEADS": 8}
_LLAMA_31: Mapping[str, Values] = {
    "LLaMA31_405BFP16x64": {**_405B, **mesh(64)},
    "LLaMA31_405BLinearOnlyInt8x32": {**_405B, **_INT8, **mesh(32)},
}


def model_classes() -> list[ModelClass]:
    return [
        saxml_class("lm_cloud", name, architecture, values)
        for architecture, table in ((_12, _LLAMA_1_AND_2), (_3, _LLAMA_3), (_31, _LLAMA_31))
        for name, values in table.items()
    ]
