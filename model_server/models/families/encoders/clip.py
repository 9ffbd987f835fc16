"""CLIP: a causal tower of texts and a tower of images, each projected into one space.

Source: Radford et al. 2021 (arXiv:2103.00020); names and config keys are those of Hugging Face's
`CLIPModel`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import KnownKeys, ignored
from model_server.models.layers.embedder import EmbedderFamily
from model_server.models.layers.layers import LayerNorm, Linear
from model_server.models.media.image_text import (
    OUTER,
    TOWER,
    ImageTextRecipe,
    TextTower,
    image_processor,
    image_recipe,
    recipe_of,
    sizes_of,
    squares,
    towers_of,
)
from model_server.models.media.llava_vision_encoder import (
    CLIP_READ,
    ClipTower,
    clip_config,
    clip_form,
)
from model_server.models.media.siglip import SiglipConfig
from model_server.models.media.tower_layer import dense
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError

KEYS = KnownKeys(
    "clip",
    (*OUTER, "text_config_dict", "vision_config_dict", "projection_dim"),
    ignored("initializer_factor", "logit_scale_init_value"),
)
_TEXT_KEYS = KnownKeys(
    "clip",
    (
        "eos_token_id",
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "layer_norm_eps",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "vocab_size",
    ),
    # The outer config.json says the size of both projections.
    ignored("dropout", "initializer_factor", "projection_dim"),
)
_DEFAULTS = {
    "text_config": {
        "eos_token_id": 49407,
        "hidden_act": "quick_gelu",
        "hidden_size": 512,
        "intermediate_size": 2048,
        "layer_norm_eps": 1e-5,
        "max_position_embeddings": 77,
        "num_attention_heads": 8,
        "num_hidden_layers": 12,
        "vocab_size": 49408,
    },
}
_OLD_END = 2  # what the first files say in place of the token that ends texts


class ClipImages(nnx.Module):
    """A MediaEncoder whose images have one vector each."""

    def __init__(self, tower: SiglipConfig, outputs: int, form: WeightForm) -> None:
        self.tower = ClipTower(tower, [tower.layers], TOWER, form)
        norm = dense(f"{TOWER}.post_layernorm")
        self.after = LayerNorm(tower.embed, *norm, epsilon=tower.epsilon)
        kernel = ("visual_projection.weight",)
        self.projection = Linear(outputs, tower.embed, (None, "embed"), kernel, form=form)

    def __call__(self, pieces: jax.Array, places: jax.Array, lengths: jax.Array) -> jax.Array:
        whole = self.tower.seen(pieces, places, lengths)[:, 0]
        return self.projection(self.after(whole))[:, None]


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> ImageTextRecipe:
    keys = ConfigKeys(config, KEYS)
    texts, images = towers_of(keys, _DEFAULTS)
    outputs, tower = keys.whole("projection_dim", 512), clip_config(images)
    form, shades = clip_form(image_processor(keys, "CLIP", CLIP_READ), tower)
    media = image_recipe(
        tower,
        outputs,
        form,
        lambda made: ClipImages(tower, outputs, made),
        squares(tower, shades, first=1),
    )
    return recipe_of(
        _texts(ConfigKeys(texts, _TEXT_KEYS, _DEFAULTS["text_config"]), outputs),
        media,
        values,
        padded=False,
        biased=False,
        independent=False,
    )


def _texts(keys: ConfigKeys, outputs: int) -> TextTower:
    end = keys.get("eos_token_id")
    if type(end) is not int:
        raise CheckpointError(
            f"text_config has eos_token_id = {end!r}; the clip family supports one token"
        )
    return TextTower(
        layers=sizes_of(keys),
        vocab=keys.whole("vocab_size"),
        positions=keys.whole("max_position_embeddings"),
        outputs=outputs,
        causal=True,
        head=(("text_projection.weight",), None),
        pool=partial(_at_end, end),
    )


def _at_end(end: int, hidden: jax.Array, tokens: jax.Array) -> jax.Array:
    """f32[B, D]: at the first token that ends a text, the largest of all in the first files."""
    at = jnp.argmax(tokens if end == _OLD_END else tokens == end, axis=1)
    return jnp.take_along_axis(hidden, at[:, None, None], axis=1)[:, 0]


FAMILY = EmbedderFamily("clip", ("clip",), "CLIP", configure)
