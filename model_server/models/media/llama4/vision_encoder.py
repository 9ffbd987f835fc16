"""Llama 4's image input: tiles, each encoded by itself, squares of patches merged, a projection.

An image that fills more than one tile is seen once more as a whole, behind its tiles. Names and
config keys are those of Hugging Face's `Llama4ForConditionalGeneration`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_server.checkpoints.media_part import PREPROCESSOR
from model_server.models.config_keys import ConfigKeys
from model_server.models.layers.layers import Linear, activation_of
from model_server.models.media.image_processor import ImageProcessor
from model_server.models.media.llama4.tower import Llama4Tiles, Llama4Tower
from model_server.models.media.media_recipe import MediaRecipe, PreparedMedia
from model_server.models.media.pixels import Shades, half_shades_of, patches_of, places_of
from model_server.models.media.vision_keys import VISION_KEYS, image_token_of, vision_config_of
from model_server.models.weights.weight import WeightForm
from model_server.sharing.images.forms import BILINEAR, TilesForm

KEYS = VISION_KEYS
_IMAGE_TOKEN, _MOST_TILES = 200092, 16
_COUNTS = (1, 3, 5, 9)  # tiles with the whole image that programs are compiled for
_IMAGE, _SOFT = "<|image|>", "<|patch|>"
_START, _END = "<|image_start|>", "<|image_end|>"
_BESIDE, _BELOW = "<|tile_x_separator|>", "<|tile_y_separator|>"
_READ = ("max_patches", "resize_to_max_canvas", "size")
_OFF = ("do_center_crop", "do_pad")
_UNUSED = ("crop_size", "pad_size")
_GELU = activation_of("gelu")


class Llama4Encoder(nnx.Module):
    """A MediaEncoder."""

    def __init__(self, tiles: Llama4Tiles, embed: int, form: WeightForm) -> None:
        self.tiles, self.embed = tiles, embed
        self.tower = Llama4Tower(tiles, "vision_model", form)
        up, down = (f"vision_model.vision_adapter.mlp.fc{n}.weight" for n in (1, 2))
        self.up = Linear(tiles.inner, tiles.ffw, ("ffw", None), (up,), form=form)
        self.down = Linear(tiles.out, tiles.out, (None, "ffw"), (down,), form=form)
        projection = ("multi_modal_projector.linear_1.weight",)
        self.projection = Linear(embed, tiles.out, ("embed", None), projection, form=form)

    def __call__(self, pieces: jax.Array, places: jax.Array, lengths: jax.Array) -> jax.Array:
        (images, most, _), each = pieces.shape, self.tiles.side**2
        pieces, places = (part.reshape(-1, each, part.shape[-1]) for part in (pieces, places))
        first = jnp.arange(0, most, each)
        counts = jnp.where(first[None] < lengths[:, None], each, 0).reshape(-1)
        # Patches of one vector lie behind each other.
        seen = self.tower(pieces, places, counts).reshape(-1, self.tiles.ffw)
        made = self.projection(_GELU(self.down(_GELU(self.up(seen)))))
        return made.reshape(images, -1, self.embed)


def llama4_vision(keys: ConfigKeys, embed: int) -> MediaRecipe | None:
    """Return the recipe of the vision encoder; None: the checkpoint has none.

    embed: of the language model. Raises CheckpointError.
    """
    given = vision_config_of(keys)
    if given is None:
        return None
    tiles = Llama4Tiles.from_hf(given)
    form, shades = _processor(keys.get(PREPROCESSOR, {}), tiles)
    each, most = tiles.side**2, form.most + 1 if form.most > 1 else 1
    counts = [*(count for count in _COUNTS if count < most), most]
    return MediaRecipe(
        kind="image",
        build=lambda weights: Llama4Encoder(tiles, embed, weights),
        form=form,
        prepare=partial(prepared, shades, tiles),
        placeholder=_IMAGE,
        token=image_token_of(keys, _IMAGE_TOKEN),
        piece=3 * tiles.patch**2,
        columns=2,
        per_row=tiles.merged**2,
        width=embed,
        pieces=tuple(count * each for count in counts),
    )


def _processor(given: Mapping[str, Any], tiles: Llama4Tiles) -> tuple[TilesForm, Shades]:
    """Return how images are cut and scaled. Raises CheckpointError."""
    read = ImageProcessor(given, "Llama4", (*_READ, *_UNUSED), off=_OFF)
    size = read.square(tiles.tile)
    if size != tiles.tile:
        raise read.wrong("size", f"vision_config's image_size, {tiles.tile}")
    most, enlarged = read.whole("max_patches", _MOST_TILES, most=64), read.flag(_READ[1])
    half = (0.5,) * 3
    shades = half_shades_of(read.colours(half, half))
    return TilesForm(size, most, enlarged, read.resample(BILINEAR)), shades


def prepared(shades: Shades, tiles: Llama4Tiles, pixels: np.ndarray) -> PreparedMedia:
    """Cut u8[h, w, 3]: tiles from left to right, then down, and below them the whole image."""
    side, (high, wide) = tiles.tile, (each // tiles.tile for each in pixels.shape[:2])
    if high > 1:
        high -= 1
    grid = pixels[: high * side].reshape(high, side, wide, side, 3).swapaxes(1, 2)
    cut = list(grid.reshape(-1, side, side, 3))
    if len(cut) > 1:
        cut.append(pixels[high * side :, :side])
    places, vectors = places_of(tiles.side, tiles.side, tiles.merged), tiles.side // tiles.merged
    return PreparedMedia(
        pieces=np.concatenate([patches_of(t, shades, tiles.patch, tiles.merged) for t in cut]),
        places=np.tile(places, (len(cut), 1)),
        grid=(len(cut), vectors, vectors),
        rows=len(cut) * tiles.rows,
        text=_text(high, wide, _SOFT * tiles.rows),
    )


def _text(high: int, wide: int, tile: str) -> str:
    rows = [_BESIDE.join([tile] * wide) + _BELOW] * high if high * wide > 1 else []
    return "".join((_START, *rows, _IMAGE, tile, _END))
