"""LLaVA: another family's language model beside a vision tower.

Source: Liu et al. 2023 (arXiv:2304.08485); names and config keys are those of Hugging Face's
`LlavaForConditionalGeneration`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families import llama, mistral, qwen2
from model_server.models.known_keys import KnownKeys, anything
from model_server.models.media import llava_vision_encoder
from model_server.models.recipe import Family, Recipe
from sax.errors import CheckpointError

_TEXT_TYPE = "text_model_type"  # written by checkpoints/text_part
_CONFIGURE: Mapping[str, Callable[[Mapping[str, Any] | None, Mapping[str, Any]], Recipe]] = {
    "llama": llama.configure,
    "mistral": mistral.configure,
    "qwen2": qwen2.configure,
}
# Sizes that transformers gives a text model and published files leave out.
_SIZES: Mapping[str, Any] = {
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
}
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "llama": {**_SIZES, "intermediate_size": 11008, "vocab_size": 32000},
    "mistral": {**_SIZES, "intermediate_size": 14336, "num_key_value_heads": 8},
    "qwen2": {},
}
_NOTES = ("is_composition",)  # of older files: that there are parts


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    assert config is not None, "the registry says that llava needs a checkpoint"
    kind = config.get(_TEXT_TYPE)
    if not isinstance(kind, str) or kind not in _CONFIGURE:
        raise CheckpointError(
            f"the text_config of this llava checkpoint has model_type = {kind!r}; supported: "
            f"{', '.join(_CONFIGURE)}"
        )
    others = (*llava_vision_encoder.KEYS, *_NOTES, _TEXT_TYPE)
    text = {key: value for key, value in config.items() if key not in others}
    recipe = _CONFIGURE[kind]({**_DEFAULTS[kind], **text, "model_type": kind}, values)
    # The family of the text model has checked its keys.
    keys = ConfigKeys(
        config, KnownKeys("llava", llava_vision_encoder.KEYS, dict.fromkeys(config, anything))
    )
    return replace(recipe, media=llava_vision_encoder.llava_vision(keys, recipe.embed, values))


FAMILY = Family("llava", ("llava",), "LLaVA 1.5, Pixtral 12B", configure, own_types_only=True)
