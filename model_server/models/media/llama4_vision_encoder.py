"""Llama 4's image input: tiles, each encoded by itself, squares of patches merged, a projection.

An image that fills more than one tile is seen once more as a whole, behind its tiles. Names and
config keys are those of Hugging Face's `Llama4ForConditionalGeneration`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_server.checkpoints.media_part import PREPROCESSOR
from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import KnownKeys, ignored, one_of
from model_server.models.layers.activations import activation_of
from model_server.models.layers.attention import AttentionSources
from model_server.models.layers.layers import LayerNorm, Linear, run_layer
from model_server.models.layers.rope import Rope, rope_frequencies
from model_server.models.media.image_processor import ImageProcessor
from model_server.models.media.media_recipe import MediaRecipe, PreparedMedia
from model_server.models.media.pixels import Shades, half_shades_of, patches_of, places_of
from model_server.models.media.tower_layer import (
    TowerAttention,
    TowerLayer,
    axial_theta,
    dense,
    plain_ffw,
)
from model_server.models.media.vision_keys import VISION_KEYS, image_token_of, vision_config_of
from model_server.models.weights.weight import WeightForm, weight
from model_server.sharing.images.forms import BILINEAR, TilesForm
from sax.errors import CheckpointError

# Llama 4's tower: square tiles, rotated by row and column, with a vector of the whole tile.
#
# Names and config keys are those of Hugging Face's `Llama4VisionModel`.

_TOWER_KEYS = KnownKeys(
    "llama4 vision",
    (
        "hidden_size",
        "image_size",
        "intermediate_size",
        "num_attention_heads",
        "num_channels",
        "num_hidden_layers",
        "patch_size",
        "pixel_shuffle_ratio",
        "projector_input_dim",
        "projector_output_dim",
        "rope_parameters",
        "rope_theta",
        "vision_output_dim",
    ),
    {
        # The reference computes GELU, norms with an epsilon of 1e-5 and no biases, whatever these
        # say, and drops nothing but the vector of the whole tile.
        **ignored(
            "hidden_act",
            "multi_modal_projector_bias",
            "norm_eps",
            "projector_dropout",
            "vision_feature_layer",
        ),
        "vision_feature_select_strategy": one_of("default"),
    },
)
_DEFAULTS = {
    "hidden_size": 768,
    "image_size": 448,
    "intermediate_size": 5632,
    "num_attention_heads": 16,
    "num_hidden_layers": 34,
    "patch_size": 14,
    "pixel_shuffle_ratio": 0.5,
    "projector_input_dim": 4096,
    "projector_output_dim": 4096,
    "vision_output_dim": 7680,
}
_EPSILON = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama4Tiles:
    """Sizes of the tower and of its adapter."""

    layers: int
    embed: int
    ffw: int
    heads: int
    tile: int  # pixels of a side
    patch: int
    merged: int  # patches of a row or a column that become one vector
    inner: int  # of the adapter
    out: int
    rope: Rope

    @property
    def side(self) -> int:
        """Patches of a row or a column of a tile."""
        return self.tile // self.patch

    @property
    def rows(self) -> int:
        """Vectors of a tile."""
        return (self.side // self.merged) ** 2

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Llama4Tiles:
        """Parse `vision_config`. Raises CheckpointError for unsupported settings."""
        keys = ConfigKeys(config, _TOWER_KEYS, _DEFAULTS)
        keys.only("num_channels", 3)
        embed, heads = keys.whole("hidden_size"), keys.whole("num_attention_heads")
        made = cls(
            layers=keys.whole("num_hidden_layers"),
            embed=embed,
            ffw=keys.whole("intermediate_size"),
            heads=heads,
            tile=keys.whole("image_size"),
            patch=keys.whole("patch_size"),
            merged=_merged(keys.number("pixel_shuffle_ratio")),
            inner=keys.whole("projector_input_dim"),
            out=keys.whole("projector_output_dim"),
            rope=_rope(keys, embed // heads),
        )
        made._check(keys.whole("vision_output_dim"))
        return made

    def _check(self, output: int) -> None:
        if self.embed % (4 * self.heads):
            raise CheckpointError(
                f"vision_config has hidden_size {self.embed} for {self.heads} heads; a head must "
                "have a multiple of 4 numbers, half of which are rotated by rows"
            )
        if self.tile % (self.patch * self.merged):
            raise CheckpointError(
                f"vision_config has image_size {self.tile}; the llama4 family needs whole squares "
                f"of {self.merged} x {self.merged} patches of {self.patch} pixels"
            )
        shuffled = self.embed * self.merged**2
        if (shuffled, self.inner, output) != (self.ffw, self.out, self.out):
            raise CheckpointError(
                f"vision_config has intermediate_size {self.ffw}, projector_input_dim "
                f"{self.inner}, projector_output_dim {self.out} and vision_output_dim {output}; "
                f"the llama4 family needs {shuffled} and three equal ones"
            )


def _merged(ratio: float) -> int:
    """Return the patches of a side that a ratio of pixel_shuffle makes one vector."""
    merged = round(1 / ratio) if ratio > 0 else 0
    if merged < 1 or merged * ratio != 1.0:
        raise CheckpointError(
            f"vision_config has pixel_shuffle_ratio = {ratio!r}; the llama4 family supports 1, "
            "0.5, 0.25 and the like"
        )
    return merged


def _rope(keys: ConfigKeys, size: int) -> Rope:
    """Return the rope by columns, then by rows. Raises CheckpointError."""
    theta = axial_theta(keys, "llama4")
    each = rope_frequencies(size // 2, theta).tolist()
    axes = (1,) * len(each) + (0,) * len(each)
    return Rope(frequencies=(*each, *each), axes=axes, interleaved=True)


class Llama4Tower(nnx.Module):
    """Maps the patches of tiles to a vector each."""

    def __init__(self, config: Llama4Tiles, prefix: str, form: WeightForm) -> None:
        self.config = config
        size, numbers = config.embed, 3 * config.patch**2
        kernel = (f"{prefix}.patch_embedding.linear.weight",)
        self.patches = Linear(size, numbers, (None, None), kernel, form=form)
        self.whole = _vectors((size,), f"{prefix}.class_embedding")
        table = f"{prefix}.positional_embedding_vlm"
        self.positions = _vectors((config.side**2 + 1, size), table)
        self.before = _norm(config, f"{prefix}.layernorm_pre")
        names = (f"{prefix}.model.layers.{index}" for index in range(config.layers))
        self.layers = nnx.List([_layer(config, name, form) for name in names])
        self.behind = _norm(config, f"{prefix}.layernorm_post")

    def __call__(self, pieces: jax.Array, places: jax.Array, lengths: jax.Array) -> jax.Array:
        """Maps f32[N, P, C] at rows and columns i32[N, P, 2] of tiles to f32[N, P, D].

        lengths: i32[N], P or 0 of tiles that are padding.
        """
        tiles, count, _ = pieces.shape
        at = places[..., 0] * self.config.side + places[..., 1]
        patches = self.patches(pieces.reshape(tiles * count, -1)).reshape(tiles, count, -1)
        # The vector of the whole tile comes first here, and has the last of the positions.
        whole = jnp.broadcast_to(
            self.whole[...] + self.positions[-1], (tiles, 1, self.config.embed)
        )
        x = jnp.concatenate([whole, patches + self.positions[...].at[at].get(mode="clip")], axis=1)
        x = self.before(x).reshape(tiles * (count + 1), -1)
        # Rows and columns are counted from 1, so that the vector of the tile is not rotated.
        turns = jnp.pad(places + 1, ((0, 0), (1, 0), (0, 0))).reshape(-1, 2).T
        rotation, seen = self.config.rope.at(turns), jnp.where(lengths > 0, count + 1, 0)
        for layer in self.layers:
            x = run_layer(layer, x, seen, rotation)
        return self.behind(x.reshape(tiles, count + 1, -1)[:, 1:])


def _vectors(shape: tuple[int, ...], name: str) -> nnx.Param:
    axes = (None,) * len(shape)
    return weight(shape, axes, (name,), dtype=jnp.float32, spread=0.02)


def _layer(config: Llama4Tiles, name: str, form: WeightForm) -> TowerLayer:
    sources = AttentionSources.hugging_face(f"{name}.self_attn", biased=True, out_biased=True)
    up, down = f"{name}.mlp.fc1", f"{name}.mlp.fc2"
    return TowerLayer(
        _norm(config, f"{name}.input_layernorm"),
        TowerAttention(config.embed, config.heads, sources, form),
        _norm(config, f"{name}.post_attention_layernorm"),
        plain_ffw(config.embed, config.ffw, up, down, _GELU, form),
    )


def _norm(config: Llama4Tiles, name: str) -> LayerNorm:
    return LayerNorm(config.embed, *dense(name), epsilon=_EPSILON)


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
