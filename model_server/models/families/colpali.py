"""ColPali: PaliGemma, whose tokens all see each other, with a vector for each token.

Its language model is Gemma, its vision encoder SigLIP's tower and one projection. The tokens of an
image come first, then what is asked of it.
Source: Faysse et al. 2024 (arXiv:2407.01449), Beyer et al. 2024 (arXiv:2407.07726); names and
config keys are those of Hugging Face's `ColPaliForRetrieval`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from flax import nnx

from model_server.checkpoints.media_part import PREPROCESSOR
from model_server.models.config_keys import ConfigKeys
from model_server.models.families import gemma
from model_server.models.families.around import Configure, around
from model_server.models.layers.layers import Linear
from model_server.models.media.image_processor import ImageProcessor
from model_server.models.media.media_recipe import MediaRecipe, PreparedMedia
from model_server.models.media.pixels import patches_of, shades_of
from model_server.models.media.projector import NAME as PROJECTOR
from model_server.models.media.projector import dense_layer
from model_server.models.media.siglip import SiglipConfig, SiglipTower, square_form
from model_server.models.media.vision_keys import VISION_KEYS, image_token_of, vision_config_of
from model_server.models.recipe import Family, Recipe
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError

# What transformers gives a text model, and published files leave out.
_SIZES: Mapping[str, Any] = {
    "hidden_size": 2048,
    "intermediate_size": 16384,
    "num_attention_heads": 8,
    "num_hidden_layers": 18,
    "num_key_value_heads": 1,
    "vocab_size": 257152,
}
_TEXTS: Mapping[str, tuple[Configure, Mapping[str, Any]]] = {"gemma": (gemma.configure, _SIZES)}
_TOWER: Mapping[str, Any] = {
    "hidden_size": 1152,
    "image_size": 224,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_hidden_layers": 27,
    "patch_size": 14,
}
# Counts that follow from others, and what transformers writes and does not read.
_SPARE = ("num_image_tokens", "num_positions", "projector_hidden_act", "vocab_size")
_NOTES = ("ignore_index", "num_image_tokens", "projection_dim")
_FULL = "use_bidirectional_attention"  # null and true are one here
_IMAGE_TOKEN, _SOFT = 256000, "<image>"
_HALF = (0.5, 0.5, 0.5)


class PaliGemmaEncoder(nnx.Module):
    """A MediaEncoder."""

    def __init__(self, tower: SiglipConfig, embed: int, form: WeightForm) -> None:
        self.tower = SiglipTower(tower, "vision_tower", form)
        self.projection: Linear = dense_layer(embed, tower.embed, f"{PROJECTOR}.linear", form)

    def __call__(self, pieces: jax.Array, places: jax.Array, lengths: jax.Array) -> jax.Array:
        seen = self.tower(pieces, places, lengths)
        return self.projection(seen.reshape(-1, seen.shape[-1])).reshape(*seen.shape[:2], -1)


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    given = {key: value for key, value in (config or {}).items() if key != _FULL}
    if (config or {}).get(_FULL, True) is not True:
        raise CheckpointError(
            f"config.json has {_FULL} = false: the colpali family supports models whose tokens all "
            "see each other"
        )
    made = around("colpali", given, values, _TEXTS, VISION_KEYS, _vision, _NOTES)
    return replace(made, causal=False)


def _vision(keys: ConfigKeys, embed: int) -> MediaRecipe | None:
    """Return the recipe of the vision encoder; None: the checkpoint has none."""
    given = vision_config_of(keys)
    if given is None:
        return None
    sizes = {key: value for key, value in given.items() if key not in _SPARE}
    tower = SiglipConfig.from_hf({**_TOWER, **sizes})
    rows = tower.side**2
    read = ImageProcessor(keys.get(PREPROCESSOR, {}), "Siglip", ("image_seq_length", "size"))
    read.equal({"image_seq_length": rows}, "the pieces of an image")
    form, shades = square_form(read, tower), shades_of(read.colours(_HALF, _HALF))
    places, seen = np.arange(rows, dtype=np.int32)[:, None], tower.side * tower.patch

    def prepare(pixels: np.ndarray) -> PreparedMedia:
        pieces = patches_of(pixels[:seen, :seen], shades, tower.patch, 1)
        return PreparedMedia(pieces, places, None, rows, _SOFT * rows)

    return MediaRecipe(
        kind="image",
        build=lambda weights: PaliGemmaEncoder(tower, embed, weights),
        form=form,
        prepare=prepare,
        placeholder=_SOFT,
        token=image_token_of(keys, _IMAGE_TOKEN),
        piece=tower.piece,
        columns=1,
        per_row=1,
        width=embed,
        pieces=(rows,),
    )


FAMILY = Family("colpali", ("colpali",), "ColPali", configure, own_types_only=True)
