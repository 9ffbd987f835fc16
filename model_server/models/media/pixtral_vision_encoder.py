"""Pixtral's tower: images of their own proportions, rotated by row and column.

Source: Agrawal et al. 2024 (arXiv:2410.07073); names and config keys are those of Hugging Face's
`PixtralVisionModel`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np
from flax import nnx

from model_server.checkpoints.media_part import PREPROCESSOR
from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import KnownKeys, ignored
from model_server.models.layers.activations import Activation, activation_of
from model_server.models.layers.attention import AttentionSources
from model_server.models.layers.feed_forward import GatedFeedForward
from model_server.models.layers.layers import Linear, LiveRows, RmsNorm, live_of, project, run_layer
from model_server.models.layers.rope import Rope, rope_frequencies
from model_server.models.media.image_processor import ImageProcessor
from model_server.models.media.media_recipe import MediaRecipe, PreparedMedia, doubling
from model_server.models.media.pixels import Shades, patches_of, places_of, shades_of
from model_server.models.media.projector import NAME, PROJECTOR_KEYS, Projector
from model_server.models.media.tower_layer import TowerAttention, TowerLayer, axial_theta
from model_server.models.media.vision_keys import (
    CLIP_DEVIATION,
    CLIP_MEAN,
    VISION_KEYS,
    image_token_of,
    vision_config_of,
)
from model_server.models.weights.weight import WeightForm, weight
from model_server.sharing.images.forms import BICUBIC, LongestForm
from sax.errors import CheckpointError, InvalidRequest

KEYS = KnownKeys(
    "pixtral",
    (
        "head_dim",
        "hidden_act",
        "hidden_size",
        "image_size",
        "intermediate_size",
        "num_attention_heads",
        "num_channels",
        "num_hidden_layers",
        "patch_size",
        "rope_parameters",
        "rope_theta",
    ),
    ignored("vocab_size", "projection_dim"),  # of the text model that it was published with
)
_DEFAULTS = {
    "hidden_act": "gelu",
    "hidden_size": 1024,
    "image_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
    "patch_size": 16,
}
_EPSILON = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class PixtralConfig:
    layers: int
    embed: int
    ffw: int
    heads: int
    image: int  # most pixels of a side
    patch: int  # pixels of a side
    activation: Activation
    rope: Rope
    # Queries and keys as Mistral stores them, under its names: pairs lie side by side.
    interleaved: bool = False

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], *, interleaved: bool = False) -> PixtralConfig:
        """Parse `vision_config`. Raises CheckpointError for unsupported settings."""
        keys = ConfigKeys(config, KEYS, _DEFAULTS)
        keys.only("num_channels", 3)
        heads, embed = keys.whole("num_attention_heads"), keys.whole("hidden_size")
        if embed % (4 * heads):
            raise CheckpointError(
                f"vision_config has hidden_size {embed} for {heads} heads; a head must have a "
                "multiple of 4 numbers, half of which are rotated by rows"
            )
        keys.only("head_dim", embed // heads)
        return cls(
            layers=keys.whole("num_hidden_layers"),
            embed=embed,
            ffw=keys.whole("intermediate_size"),
            heads=heads,
            image=keys.whole("image_size"),
            patch=keys.whole("patch_size"),
            activation=activation_of(keys.get("hidden_act")),
            rope=replace(_rope(keys, embed // heads), interleaved=interleaved),
            interleaved=interleaved,
        )


def _rope(keys: ConfigKeys, size: int) -> Rope:
    """Return the rope over rows and columns, which take turns. Raises CheckpointError."""
    theta = axial_theta(keys, "pixtral")
    each = rope_frequencies(size, theta).tolist()
    rows, columns = each[::2], each[1::2]
    return Rope(frequencies=(*rows, *columns), axes=(0,) * len(rows) + (1,) * len(columns))


class PixtralTower(nnx.Module):
    """Maps patches of images to a vector each."""

    def __init__(self, config: PixtralConfig, prefix: str, form: WeightForm) -> None:
        self.rope = config.rope
        self.live: LiveRows = nnx.data(None)
        self.kernel = weight(
            (config.embed, 3, config.patch, config.patch),
            (None, None, None, None),
            (f"{prefix}.patch_conv.weight",),
            dtype=form.dtype,
            spread=0.02,
        )
        self.norm = _norm(config, f"{prefix}.ln_pre")
        names = (f"{prefix}.transformer.layers.{index}" for index in range(config.layers))
        self.layers = nnx.List([_layer(config, name, form) for name in names])

    def __call__(self, pieces: jax.Array, places: jax.Array, lengths: jax.Array) -> jax.Array:
        """Maps f32[S, P, C] at rows and columns i32[S, P, 2] to f32[S, P, D]."""
        images, count, size = pieces.shape
        kernel = self.kernel[...].reshape(-1, size)
        x = self.norm(project(pieces.reshape(-1, size), kernel, live_of(self)))
        rotation = self.rope.at(places.reshape(-1, 2).T)
        for layer in self.layers:
            x = run_layer(layer, x, lengths, rotation)
        return x.reshape(images, count, -1)


def _layer(config: PixtralConfig, name: str, form: WeightForm) -> TowerLayer:
    sources = AttentionSources.hugging_face(f"{name}.attention")
    if config.interleaved:
        q, k = ((f"{name}.attention.{each}.weight",) for each in ("wq", "wk"))
        sources = replace(sources, q=q, k=k)
    ffw = GatedFeedForward.hugging_face(
        config.embed, config.ffw, f"{name}.feed_forward", activation=config.activation, form=form
    )
    return TowerLayer(
        _norm(config, f"{name}.attention_norm"),
        TowerAttention(config.embed, config.heads, sources, form),
        _norm(config, f"{name}.ffn_norm"),
        ffw,
    )


def _norm(config: PixtralConfig, name: str) -> RmsNorm:
    return RmsNorm(config.embed, (f"{name}.weight",), epsilon=_EPSILON)


# --- Images as the tower takes them, and the text that stands for one in a prompt.
#
# An image keeps its proportions. Its vectors are written row by row, each with a token at its end.

_SOFT, _BREAK, _END = "[IMG]", "[IMG_BREAK]", "[IMG_END]"
# The processor takes the size of patches, and how many it merges, from what it prepares them for.
_READ = ("patch_size", "size", "spatial_merge_size")
_UNUSED = ("crop_size", "do_pad", "pad_size")  # it pads images of a batch to one size
_MOST_PIECES = 2**16


def pixtral_recipe(
    tower: PixtralConfig,
    merged: int,
    given: Mapping[str, Any],
    values: Mapping[str, Any],
    *,
    build: Callable[[WeightForm], nnx.Module],
    embed: int,
    token: int,
) -> MediaRecipe:
    """Return a recipe over Pixtral's tower.

    merged: patches of a row or a column that become one vector. given: preprocessor_config.
    values: overrides. build: the tower and what projects its vectors. embed, token: of the
    language model. Raises CheckpointError, InvalidRequest.
    """
    read = ImageProcessor(given, "Pixtral", (*_READ, *_UNUSED), off=("do_center_crop",))
    factor, longest = tower.patch * merged, read.side("size", tower.image, "longest_edge")
    form = LongestForm(factor, _longest(values, longest, factor), read.resample(BICUBIC))
    shades = shades_of(read.colours(CLIP_MEAN, CLIP_DEVIATION))
    most = (-(-form.longest // form.factor) * merged) ** 2
    if most > _MOST_PIECES:
        raise read.wrong("size", f"images of at most {_MOST_PIECES} patches, not {most}")
    return MediaRecipe(
        kind="image",
        build=build,
        form=form,
        prepare=partial(prepared, shades, tower.patch, merged),
        placeholder=_SOFT,
        token=token,
        piece=3 * tower.patch**2,
        columns=2,
        per_row=merged**2,
        width=embed,
        pieces=doubling(most, merged**2),
    )


def _longest(values: Mapping[str, Any], own: int, factor: int) -> int:
    """Return the most pixels of a side, `own` without IMAGE_PIXELS. Raises InvalidRequest."""
    asked = values.get("IMAGE_PIXELS")
    if asked is None:
        return own
    if type(asked) is not int or not factor**2 <= asked <= own**2:
        raise InvalidRequest(
            f"IMAGE_PIXELS is {asked!r}: give a whole number from {factor**2}, the pixels of one "
            f"vector, to {own**2}, the most of the checkpoint",
            param="overrides.IMAGE_PIXELS",
        )
    return math.isqrt(asked)


def prepared(shades: Shades, patch: int, merged: int, pixels: np.ndarray) -> PreparedMedia:
    """Cut u8[h, w, 3], whose sides are whole vectors."""
    high, wide = (side // (patch * merged) for side in pixels.shape[:2])
    return PreparedMedia(
        pieces=patches_of(pixels, shades, patch, merged),
        places=places_of(high * merged, wide * merged, merged),
        grid=(1, high, wide),
        rows=high * wide,
        text=_BREAK.join([_SOFT * wide] * high) + _END,
    )


# --- Mistral 3's image input: the tower, a norm, squares of patches merged, and a projector.
#
# Names and config keys are those of Hugging Face's `Mistral3ForConditionalGeneration`.

MISTRAL3_KEYS = (
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
