"""Qwen2-Audio: Qwen2 beside the encoder of Whisper; sounds of up to 30 s stand in its prompts.

Source: Chu et al. 2024 (arXiv:2407.10759); names and config keys are those of Hugging Face's
`Qwen2AudioForConditionalGeneration`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models.families import qwen2
from model_server.models.families.around import around
from model_server.models.media.whisper_encoders import KEYS, qwen2_audio_media
from model_server.models.recipe import Family, Recipe

# Sizes that transformers gives the text model and published files leave out.
_DEFAULTS: Mapping[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "vocab_size": 151936,
}
# Of training, and a number that nothing is computed with.
_UNUSED = ("ignore_index", "audio_ignore_index", "ignore_label")


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    texts = {"qwen2": (qwen2.configure, _DEFAULTS)}
    return around("qwen2_audio", config, values, texts, KEYS, qwen2_audio_media, _UNUSED)


FAMILY = Family("qwen2_audio", ("qwen2_audio",), "Qwen2-Audio", configure, own_types_only=True)
