"""Mistral 3's image input: Pixtral's tower, a norm, squares of patches merged, and a projector.

Names and config keys are those of Hugging Face's `Mistral3ForConditionalGeneration`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx

from model_server.checkpoints.media_part import PREPROCESSOR
from model_server.models.config_keys import ConfigKeys
from model_server.models.layers.layers import Linear, RmsNorm
from model_server.models.media.media_recipe import MediaRecipe
from model_server.models.media.pixtral.images import pixtral_recipe
from model_server.models.media.pixtral.tower import PixtralConfig, PixtralTower
from model_server.models.media.projector import NAME, PROJECTOR_KEYS, Projector
from model_server.models.media.vision_keys import VISION_KEYS, image_token_of, vision_config_of
from model_server.models.weights.weight import WeightForm

KEYS = (
    *VISION_KEYS,
    *PROJECTOR_KEYS,
    "spatial_merge_size",
    "vision_feature_layer",
)
_IMAGE_TOKEN, _MERGED = 10, 2


class SquareMerger(nnx.Module):
    """Makes one vector of each square of patches, which lie behind each other."""

    def __init__(self, embed: int, merged: int, form: WeightForm) -> None:
        self.each = merged**2
        source = (f"{NAME}.patch_merger.merging_layer.weight",)
        self.merging = Linear(embed, embed * self.each, (None, "embed"), source, form=form)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps f32[P, D] to f32[P / each, D]."""
        # The matrix takes the numbers of all patches at one place of a vector together.
        squares = x.reshape(-1, self.each, x.shape[-1]).swapaxes(1, 2)
        return self.merging(squares.reshape(squares.shape[0], -1))


class Mistral3Encoder(nnx.Module):
    """A MediaEncoder."""

    def __init__(
        self, keys: ConfigKeys, tower: PixtralConfig, embed: int, form: WeightForm
    ) -> None:
        self.embed = embed
        self.tower = PixtralTower(tower, "vision_tower", form)
        epsilon = keys.number("rms_norm_eps", 1e-6)
        self.norm = RmsNorm(tower.embed, (f"{NAME}.norm.weight",), epsilon=epsilon)
        self.merger = SquareMerger(tower.embed, keys.whole("spatial_merge_size", _MERGED), form)
        self.projector = Projector(keys, embed, tower.embed, form, biased=False)

    def __call__(self, pieces: jax.Array, places: jax.Array, lengths: jax.Array) -> jax.Array:
        seen = self.tower(pieces, places, lengths)
        merged = self.merger(self.norm(seen.reshape(-1, seen.shape[-1])))
        return self.projector(merged).reshape(seen.shape[0], -1, self.embed)


def mistral3_vision(
    keys: ConfigKeys, embed: int, values: Mapping[str, Any], *, interleaved: bool = False
) -> MediaRecipe | None:
    """Return the recipe of the vision encoder; None: the checkpoint has none.

    embed: of the language model. values: overrides. interleaved: the tower's queries and keys are
    stored as Mistral has them. Raises CheckpointError, InvalidRequest.
    """
    given = vision_config_of(keys)
    if given is None:
        return None
    tower = PixtralConfig.from_hf(given, interleaved=interleaved)
    keys.only("vision_feature_layer", -1)  # the last
    return pixtral_recipe(
        tower,
        keys.whole("spatial_merge_size", _MERGED),
        keys.get(PREPROCESSOR, {}),
        values,
        build=lambda form: Mistral3Encoder(keys, tower, embed, form),
        embed=embed,
        token=image_token_of(keys, _IMAGE_TOKEN),
    )
