"""Mistral: Llama with a sliding window in every layer, or in those that the config lists.

Source: Jiang et al. 2023 (arXiv:2310.06825); names and config keys are those of Hugging Face's
`MistralForCausalLM`. The vision encoder, if a checkpoint has one, is
`media/pixtral_vision_encoder`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys, windows_of
from model_server.models.families.decoder_recipe import pre_norm_recipe
from model_server.models.families.llama import attention_shape
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys
from model_server.models.layers.rope import rope_of
from model_server.models.media.media_recipe import encoders
from model_server.models.media.pixtral_vision_encoder import MISTRAL3_KEYS, mistral3_vision
from model_server.models.recipe import Family, Recipe, serving

KEYS = KnownKeys(
    "mistral", (*DECODER, "layer_types", "sliding_window", *MISTRAL3_KEYS), DECODER_OFF
)
_DEFAULTS = {"max_position_embeddings": 131072}
# If config.json of a Mistral has no sliding_window: the first model's. Null means none, as does a
# missing one in a model type that only resembles Mistral.
_FIRST_WINDOW = {"sliding_window": 4096}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    own = config is not None and config.get("model_type") in ("mistral", "ministral")
    keys = ConfigKeys(config, KEYS, _DEFAULTS | (_FIRST_WINDOW if own else {}))
    shape = attention_shape(keys)
    windows = windows_of(keys, keys.whole_or_none("sliding_window"), lambda index: True)
    recipe = pre_norm_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shapes=[replace(shape, window=window) for window in windows],
        rope=rope_of(keys.all, shape.head_dim),
    )
    return replace(recipe, media=encoders(mistral3_vision(keys, recipe.embed, values)))


FAMILY = Family(
    "mistral",
    ("mistral", "ministral", "mistral3"),
    "Mistral, Mistral Nemo, Mistral Small 3, Ministral 8B",
    configure,
)
