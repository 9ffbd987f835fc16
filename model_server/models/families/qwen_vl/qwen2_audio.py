"""Qwen2-Audio: Qwen2 beside the encoder of Whisper; sounds of up to 30 s stand in its prompts.

Source: Chu et al. 2024 (arXiv:2407.10759); names and config keys are those of Hugging Face's
`Qwen2AudioForConditionalGeneration`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families import qwen2
from model_server.models.known_keys import KnownKeys, anything
from model_server.models.media import qwen_audio_encoder
from model_server.models.recipe import Family, Recipe
from sax.errors import CheckpointError

_TEXT_TYPE = "text_model_type"  # written by checkpoints/text_part
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
    assert config is not None, "the registry says that qwen2_audio needs a checkpoint"
    kind = config.get(_TEXT_TYPE)
    if kind != "qwen2":
        raise CheckpointError(
            f"the text_config of this qwen2_audio checkpoint has model_type = {kind!r}; supported: "
            "qwen2"
        )
    others = (*qwen_audio_encoder.KEYS, *_UNUSED, _TEXT_TYPE)
    text = {key: value for key, value in config.items() if key not in others}
    recipe = qwen2.configure({**_DEFAULTS, **text, "model_type": kind}, values)
    # The family of the text model has checked its keys.
    keys = ConfigKeys(
        config, KnownKeys("qwen2_audio", qwen_audio_encoder.KEYS, dict.fromkeys(config, anything))
    )
    return replace(recipe, media=qwen_audio_encoder.qwen2_audio_media(keys, recipe.embed))


FAMILY = Family("qwen2_audio", ("qwen2_audio",), "Qwen2-Audio", configure, own_types_only=True)
