"""LLaVA's image input: CLIP's tower or Pixtral's, and a projector.

Source: Liu et al. 2023 (arXiv:2304.08485); names and config keys are those of Hugging Face's
`LlavaForConditionalGeneration`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_server.checkpoints.media_part import PREPROCESSOR
from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import KnownKeys, ignored
from model_server.models.layers.layers import LayerNorm, LiveRows, live_of, project, run_layer
from model_server.models.media.image_processor import ImageProcessor
from model_server.models.media.media_recipe import MediaRecipe, PreparedMedia
from model_server.models.media.pixels import Shades, patches_of, shades_of
from model_server.models.media.pixtral_vision_encoder import (
    PixtralConfig,
    PixtralTower,
    pixtral_recipe,
)
from model_server.models.media.projector import PROJECTOR_KEYS, Projector
from model_server.models.media.siglip import SiglipConfig, siglip_layer
from model_server.models.media.vision_keys import (
    CLIP_DEVIATION,
    CLIP_MEAN,
    VISION_KEYS,
    image_token_of,
    vision_config_of,
)
from model_server.models.weights.weight import WeightForm, weight
from model_server.sharing.images.forms import BICUBIC, SquareForm
from sax.errors import CheckpointError

# CLIP's tower: square images in patches, with learned positions and a vector of the whole.
#
# Source: Radford et al. 2021 (arXiv:2103.00020); names and config keys are those of Hugging Face's
# `CLIPVisionModel`.

_CLIP_KEYS = KnownKeys(
    "clip",
    (
        "hidden_act",
        "hidden_size",
        "image_size",
        "intermediate_size",
        "layer_norm_eps",
        "num_attention_heads",
        "num_channels",
        "num_hidden_layers",
        "patch_size",
    ),
    # Of the vectors that it was trained to make, of training, and of the text model beside it.
    ignored("dropout", "initializer_factor", "projection_dim", "vocab_size"),
)
_DEFAULTS = {
    "hidden_act": "quick_gelu",
    "hidden_size": 768,
    "image_size": 224,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-5,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "patch_size": 32,
}


def clip_config(config: Mapping[str, Any]) -> SiglipConfig:
    """Parse `vision_config`; its layers are SigLIP's. Raises CheckpointError."""
    made = SiglipConfig.from_keys(ConfigKeys(config, _CLIP_KEYS, _DEFAULTS))
    if made.embed % made.heads or made.image % made.patch:
        raise CheckpointError(
            f"vision_config has hidden_size {made.embed} for {made.heads} heads and patches of "
            f"{made.patch} pixels for images of {made.image}: both must divide"
        )
    return made


class ClipTower(nnx.Module):
    """Maps patches of images to what each of some layers gives, without the whole's vector.

    Only the layers up to the last of these are there.
    """

    def __init__(
        self, config: SiglipConfig, depths: Sequence[int], prefix: str, form: WeightForm
    ) -> None:
        """depths: how many layers precede each result."""
        size, self.depths = config.embed, tuple(depths)
        self.live: LiveRows = nnx.data(None)
        self.kernel = weight(
            (size, 3, config.patch, config.patch),
            (None, None, None, None),
            (f"{prefix}.embeddings.patch_embedding.weight",),
            dtype=form.dtype,
            spread=0.02,
        )
        self.whole = _vectors((size,), f"{prefix}.embeddings.class_embedding")
        table = f"{prefix}.embeddings.position_embedding.weight"
        self.positions = _vectors((config.side**2 + 1, size), table)
        # So spelled in every checkpoint.
        names = (f"{prefix}.pre_layrnorm.weight",), (f"{prefix}.pre_layrnorm.bias",)
        self.before = LayerNorm(size, *names, epsilon=config.epsilon)
        layers = (f"{prefix}.encoder.layers.{index}" for index in range(max(depths)))
        self.layers = nnx.List([siglip_layer(config, name, form) for name in layers])

    def __call__(self, pieces: jax.Array, places: jax.Array, lengths: jax.Array) -> jax.Array:
        """Maps f32[S, P, C] at numbers i32[S, P, 1] from 1 to f32[S, P, D * depths]."""
        return self.seen(pieces, places, lengths)[:, 1:]

    def seen(self, pieces: jax.Array, places: jax.Array, lengths: jax.Array) -> jax.Array:
        """Return f32[S, 1 + P, D * depths]: the whole's vector comes first."""
        images, count, numbers = pieces.shape
        flat, kernel = pieces.reshape(-1, numbers), self.kernel[...].reshape(-1, numbers)
        patches = project(flat, kernel, live_of(self)).reshape(images, count, -1)
        whole = jnp.broadcast_to(self.whole[...] + self.positions[0], (images, 1, kernel.shape[0]))
        at = self.positions[...].at[places[..., 0]].get(mode="clip")
        x = jnp.concatenate([whole, patches + at], axis=1)
        x = self.before(x).reshape(images * (count + 1), -1)
        made = [x]
        for layer in self.layers:
            x = run_layer(layer, x, lengths + 1)
            made.append(x)
        found = jnp.concatenate([made[depth] for depth in self.depths], axis=-1)
        return found.reshape(images, count + 1, -1)


def _vectors(shape: tuple[int, ...], name: str) -> nnx.Param:
    axes = (None,) * len(shape)
    return weight(shape, axes, (name,), dtype=jnp.float32, spread=0.02)


KEYS = (
    *VISION_KEYS,
    *PROJECTOR_KEYS,
    "image_seq_length",
    "vision_feature_layer",
    "vision_feature_select_strategy",
)
_IMAGE_TOKEN, _LAYER = 32000, -2
_SOFT, _TOWER = "<image>", "vision_tower"
CLIP_READ = ("crop_size", "do_center_crop", "size")


class LlavaEncoder(nnx.Module):
    """A MediaEncoder."""

    def __init__(self, tower: nnx.Module, projector: Projector) -> None:
        self.tower = tower
        self.projector = projector

    def __call__(self, pieces: jax.Array, places: jax.Array, lengths: jax.Array) -> jax.Array:
        seen = self.tower(pieces, places, lengths)
        made = self.projector(seen.reshape(-1, seen.shape[-1]))
        return made.reshape(*seen.shape[:2], -1)


def llava_vision(keys: ConfigKeys, embed: int, values: Mapping[str, Any]) -> MediaRecipe | None:
    """Return the recipe of the vision encoder; None: the checkpoint has none.

    embed: of the language model. values: overrides. Raises CheckpointError, InvalidRequest.
    """
    given = vision_config_of(keys)
    if given is None:
        return None
    kind = given.get("model_type", "clip_vision_model")
    if kind == "pixtral":
        return _with_pixtral(keys, PixtralConfig.from_hf(given), embed, values)
    if kind == "clip_vision_model":
        return _with_clip(keys, clip_config(given), embed)
    raise CheckpointError(
        f"vision_config has model_type = {kind!r}; the llava family supports clip_vision_model and "
        "pixtral: publish the model with IMAGES=false, for text only"
    )


def _with_pixtral(
    keys: ConfigKeys, tower: PixtralConfig, embed: int, values: Mapping[str, Any]
) -> MediaRecipe:
    keys.only("vision_feature_layer", -1)
    keys.only("vision_feature_select_strategy", "full")

    def build(form: WeightForm) -> LlavaEncoder:
        projector = Projector(keys, embed, tower.embed, form, biased=True)
        return LlavaEncoder(PixtralTower(tower, _TOWER, form), projector)

    token, given = image_token_of(keys, _IMAGE_TOKEN), keys.get(PREPROCESSOR, {})
    return pixtral_recipe(tower, 1, given, values, build=build, embed=embed, token=token)


def _with_clip(keys: ConfigKeys, tower: SiglipConfig, embed: int) -> MediaRecipe:
    keys.only("vision_feature_select_strategy", "default")  # without the vector of the whole
    depths = _depths(keys, tower.layers)
    read = ImageProcessor(keys.get(PREPROCESSOR, {}), "CLIP", CLIP_READ, off=("do_pad",))
    form, shades = clip_form(read, tower)

    def build(form: WeightForm) -> LlavaEncoder:
        projector = Projector(keys, embed, tower.embed * len(depths), form, biased=True)
        return LlavaEncoder(ClipTower(tower, depths, _TOWER, form), projector)

    above = (f"{_TOWER}.encoder.layers.{index}." for index in range(max(depths), tower.layers))
    return MediaRecipe(
        kind="image",
        build=build,
        form=form,
        prepare=partial(prepared, shades, tower.patch),
        placeholder=_SOFT,
        token=image_token_of(keys, _IMAGE_TOKEN),
        piece=tower.piece,
        columns=1,
        per_row=1,
        width=embed,
        pieces=(tower.side**2,),
        unused=(f"{_TOWER}.post_layernorm.", f"{_TOWER}.embeddings.position_ids", *above),
    )


def _depths(keys: ConfigKeys, layers: int) -> list[int]:
    """Return how many layers precede each of the results that are joined."""
    given: Any = keys.get("vision_feature_layer", _LAYER)
    chosen = cast("list[Any]", given) if isinstance(given, list) and given else [given]
    for each in chosen:
        if type(each) is not int or not -layers <= each <= layers or each == 0:
            raise CheckpointError(
                f"config.json has vision_feature_layer = {given!r}; the llava family supports "
                f"layers from 1 to {layers}, or from -{layers} to -1"
            )
    return [each if each > 0 else layers + 1 + each for each in cast("list[int]", chosen)]


def clip_form(read: ImageProcessor, tower: SiglipConfig) -> tuple[SquareForm, Shades]:
    """Return how images are resized, cut and scaled. Raises CheckpointError."""
    size = read.side("crop_size", tower.image)
    if size != tower.image:
        raise read.wrong("crop_size", f"vision_config's image_size, {tower.image}")
    if not read.flag("do_center_crop", True):
        raise read.wrong("do_center_crop", "true")
    shortest = read.side("size", tower.image, "shortest_edge")
    if shortest < size:
        raise read.wrong("size", f"a shortest_edge of at least the crop_size, {size}")
    form = SquareForm(size, shortest, read.resample(BICUBIC))
    return form, shades_of(read.colours(CLIP_MEAN, CLIP_DEVIATION))


def prepared(shades: Shades, patch: int, pixels: np.ndarray) -> PreparedMedia:
    """Cut u8[h, w, 3] row by row; numbers are from 1."""
    high, wide = (side // patch for side in pixels.shape[:2])
    places = np.arange(1, high * wide + 1, dtype=np.int32)[:, None]
    pieces = patches_of(pixels, shades, patch, 1)
    return PreparedMedia(pieces, places, (1, high, wide), high * wide, _SOFT * (high * wide))
