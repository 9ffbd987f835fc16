"""LLaVA: another family's language model beside a vision tower.

Source: Liu et al. 2023 (arXiv:2304.08485); names and config keys are those of Hugging Face's
`LlavaForConditionalGeneration`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models.families import llama, mistral, qwen2
from model_server.models.families.around import Configure, around
from model_server.models.media import llava_vision_encoder
from model_server.models.recipe import Family, Recipe

# Sizes that transformers gives a text model and published files leave out.
_SIZES: Mapping[str, Any] = {
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
}
_LLAMA = {**_SIZES, "intermediate_size": 11008, "vocab_size": 32000}
_MISTRAL = {**_SIZES, "intermediate_size": 14336, "num_key_value_heads": 8}
_TEXTS: Mapping[str, tuple[Configure, Mapping[str, Any]]] = {
    "llama": (llama.configure, _LLAMA),
    "mistral": (mistral.configure, _MISTRAL),
    "qwen2": (qwen2.configure, {}),
}
_NOTES = ("is_composition",)  # of older files: that there are parts


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    return around(
        "llava",
        config,
        values,
        _TEXTS,
        llava_vision_encoder.KEYS,
        lambda keys, embed: llava_vision_encoder.llava_vision(keys, embed, values),
        _NOTES,
    )


FAMILY = Family("llava", ("llava",), "LLaVA 1.5, Pixtral 12B", configure, own_types_only=True)
