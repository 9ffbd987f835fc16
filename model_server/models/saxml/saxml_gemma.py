"""Saxml's Gemma classes: Gemma 1 with 2B and 7B parameters.

Source: `saxml.server.pax.lm.params.gemma`. Each loads a Gemma checkpoint of its sizes, including
the classes that Saxml marks as tests. A null mesh takes every device: on 1, 4 and 8 devices that
matches the list of meshes Saxml picks from. Classes with replicas in their mesh compute every step
on each of them, as the mesh says; to serve more requests, set `replicas` of the publish.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families import gemma
from model_server.models.recipe import ModelClass
from model_server.models.saxml import saxml_llama
from model_server.models.saxml.saxml_class import (
    SaxmlArchitecture,
    Values,
    mesh,
    saxml_class,
    sizes,
)

_CONFIG = {
    "model_type": "gemma",
    "hidden_act": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
}


def _config(values: Values, context: int) -> dict[str, Any]:
    return saxml_llama.config_of(values, context) | _CONFIG


def _sizes(keys: ConfigKeys) -> Values:
    return saxml_llama.sizes_of(ConfigKeys(keys.all, keys.known, {"head_dim": 256}))


_ARCHITECTURE = SaxmlArchitecture(
    configure=gemma.configure, config=_config, keys=gemma.KEYS, sizes=_sizes
)
# Saxml pads the vocabulary from the published 256,000 to a multiple of 256.
_BASE: Values = {
    **sizes(18, 2048, 16384, 8, head_dim=256, vocab=256128),
    "NUM_KV_HEADS": None,
    "DTYPE": "float32",
    "INPUT_SEQ_LEN": 4096,
    "MAX_DECODE_STEPS": 1024,
    "PER_EXAMPLE_MAX_DECODE_STEPS": 128,
    "NUM_SAMPLES": 1,
    "TEMPERATURE": 0.5,
    "TOP_P": 0.95,
}
_SERVED: Values = {
    **_BASE,
    "DTYPE": "bfloat16",
    "INPUT_SEQ_LEN": 1024,
    "MAX_DECODE_STEPS": 1024,
}
_2B = {**_SERVED, "NUM_KV_HEADS": 1, "NUM_CACHE_SLOTS": 256}
_7B = {
    **_SERVED,
    **sizes(28, 3072, 24576, 16, head_dim=256, vocab=256128),
    "NUM_CACHE_SLOTS": 48,
}
_INT8: Values = {"QUANTIZE": "int8"}
_CLASSES: Mapping[str, Values] = {
    "GemmaBase": {**_BASE, **mesh(1)},
    "Gemma2BFP16": _2B,
    "Gemma2BFP16Exp": _2B,  # waits a minute for full batches in Saxml; nothing waits here
    "Gemma2BFP16With8Replicas": {**_2B, **mesh(1, replicas=8)},
    "Gemma2BFP16With4Replicas": {**_2B, **mesh(1, replicas=4)},
    "Gemma2BFP16Test": _2B,
    "Gemma2BInt8": {**_2B, **_INT8},
    "Gemma2BInt8With8Replicas": {**_2B, **_INT8, **mesh(1, replicas=8)},
    "Gemma2BInt8Test": {**_2B, **_INT8},
    "Gemma7BFP16": _7B,
    "Gemma7BFP16Exp": {**_7B, "NUM_CACHE_SLOTS": 42},
    "Gemma7BFP16With2Replicas": {**_7B, **mesh(4, replicas=2)},
    "Gemma7BFP16Test": _7B,
    "Gemma7BInt8": {**_7B, **_INT8},
    "Gemma7BInt8With2Replicas": {**_7B, **_INT8, **mesh(4, replicas=2)},
    "Gemma7BInt8Test": {**_7B, **_INT8},
}


def model_classes() -> list[ModelClass]:
    return [saxml_class("gemma", name, _ARCHITECTURE, values) for name, values in _CLASSES.items()]
