"""Voxtral: Llama beside the encoder of Whisper; sounds of up to 40 minutes stand in its prompts.

Source: Liu et al. 2025 (arXiv:2507.13264); names and config keys are those of Hugging Face's
`VoxtralForConditionalGeneration`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models.families import llama, mistral
from model_server.models.families.around import Configure, around
from model_server.models.media.whisper_encoders import VOXTRAL_KEYS, voxtral_media
from model_server.models.recipe import Family, Recipe

# Sizes that transformers gives the text model and published files may leave out.
_DEFAULTS: Mapping[str, Any] = {
    "head_dim": 128,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_hidden_layers": 30,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e8,
    "vocab_size": 131072,
}
_TEXTS: Mapping[str, tuple[Configure, Mapping[str, Any]]] = {
    "llama": (llama.configure, _DEFAULTS),
    "mistral": (mistral.configure, _DEFAULTS),
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    return around("voxtral", config, values, _TEXTS, VOXTRAL_KEYS, voxtral_media)


FAMILY = Family("voxtral", ("voxtral",), "Voxtral", configure, own_types_only=True)
