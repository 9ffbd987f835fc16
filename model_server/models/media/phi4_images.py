"""Images of Phi-4-multimodal: SigLIP's tower over crops of an image, and over the whole of it.

An image fills a grid of square crops, but for white at its right or below. Four neighbouring
patches become a vector; rows of them end with a separator, what lies in the white alone is left
out, and behind another separator the whole image follows in one crop.

Source: Abouelenin et al. 2025 (arXiv:2503.01743); names and config keys are those of Hugging Face's
`Phi4MultimodalForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_server.checkpoints.media_part import FEATURES, PREPROCESSOR
from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import KnownKeys, ignored
from model_server.models.layers.layers import LiveRows, live_of, project, run_layer
from model_server.models.media.image_processor import ImageProcessor
from model_server.models.media.media_recipe import MediaRecipe, PreparedMedia
from model_server.models.media.projector import dense_layer
from model_server.models.media.siglip import SiglipConfig, siglip_layer
from model_server.models.media.tower_layer import dense
from model_server.models.media.vision_keys import vision_config_of
from model_server.models.weights.weight import WeightForm, weight
from model_server.sharing.images.forms import BICUBIC, CropsForm
from sax.errors import CheckpointError, InvalidRequest

_TOWER, _SOFT, _IMAGE_TOKEN = "vision_tower", "<|image|>", 200010
_KEYS = KnownKeys(
    "phi4_multimodal_vision",
    (
        *("crop_size", "feature_layer", "hidden_act", "hidden_size", "image_size"),
        *("image_token_id", "intermediate_size", "layer_norm_eps", "num_attention_heads"),
        *("num_channels", "num_hidden_layers", "patch_size"),
    ),
    ignored(),
)
_SIZES = {
    **{"crop_size": 448, "feature_layer": -2, "hidden_act": "gelu_pytorch_tanh"},
    **{"hidden_size": 1152, "image_size": 448, "intermediate_size": 4304, "layer_norm_eps": 1e-6},
    **{"num_attention_heads": 16, "num_channels": 3, "num_hidden_layers": 27, "patch_size": 14},
}
_MOST_CROPS, _LEAST_SIDE = 36, 10  # crops, and pixels of a side
_COUNTS = (2, 3, 5, 9, 17)  # crops with the whole image that programs are compiled for
_OF_IMAGES = ("crop_size", "dynamic_hd", "patch_size", "resample", "rescale_factor", "size")
_BELOW, _SUB, _WHOLE = 2, -1, -2  # pieces of a vector; sources of separators


class Crops(NamedTuple):
    tower: SiglipConfig
    layers: int  # of the tower, as far as it is read

    @property
    def vectors(self) -> int:
        """Vectors of a row or column of a crop."""
        return self.tower.side // 2


class CropTower(nnx.Module):
    """Maps patches of crops to a vector each, as a layer in the middle leaves them."""

    def __init__(self, crops: Crops, form: WeightForm) -> None:
        config, name = crops.tower, f"{_TOWER}.img_processor"
        self.live: LiveRows = nnx.data(None)
        kernel, bias = dense(f"{name}.embeddings.patch_embedding")
        shape = (config.embed, 3, config.patch, config.patch)
        self.kernel = weight(shape, (None,) * 4, kernel, dtype=form.dtype, spread=0.02)
        self.bias = weight((config.embed,), (None,), bias, dtype=jnp.float32, spread=0.0)
        table = (f"{name}.embeddings.position_embedding.weight",)
        shape = (config.side**2, config.embed)
        self.positions = weight(shape, (None, None), table, dtype=jnp.float32, spread=0.02)
        names = (f"{name}.encoder.layers.{at}" for at in range(crops.layers))
        self.layers = nnx.List([siglip_layer(config, each, form) for each in names])

    def __call__(self, pieces: jax.Array, places: jax.Array, lengths: jax.Array) -> jax.Array:
        """Maps f32[N, P, C] at rows i32[N, P] of the table to f32[N, P, D].

        lengths: i32[N], patches of each crop that are seen.
        """
        crops, count, size = pieces.shape
        at = self.positions[...].at[places.reshape(-1)].get(mode="clip")
        kernel = self.kernel[...].reshape(-1, size)
        x = project(pieces.reshape(-1, size), kernel, live_of(self)) + self.bias[...][None] + at
        for layer in self.layers:
            x = run_layer(layer, x, lengths)
        return x.reshape(crops, count, -1)


class CropEncoder(nnx.Module):
    """A MediaEncoder: patches f32[S, P, C] of crops, those that are seen first, the whole first.

    Places are i32[S, P, 4]: the patch's row of the table; where the patch is that stands here in
    the crop; how many of the crop are seen; and, by vectors, which of four patches each is, or
    which separator.
    """

    def __init__(self, crops: Crops, embed: int, form: WeightForm) -> None:
        self.crops, size = crops, crops.tower.embed
        self.tower = CropTower(crops, form)
        self.sub, self.whole = (
            weight(
                (*front, size), (None,) * (len(front) + 1), (f"{_TOWER}.{part}_feature_extensor",),
                dtype=jnp.float32, spread=0.02,
            )
            for part, front in (("sub_img", (1, 1, 1)), ("global_img", (1, 1)))
        )  # fmt: skip
        self.up = dense_layer(embed, size, f"{_TOWER}.img_projection_up", form)
        self.down = dense_layer(embed, embed, f"{_TOWER}.img_projection_down", form)

    def __call__(self, pieces: jax.Array, places: jax.Array, lengths: jax.Array) -> jax.Array:
        images, count, _ = pieces.shape
        side, of = self.crops.tower.side, self.crops.tower.side**2
        pieces, at = (part.reshape(-1, of, part.shape[-1]) for part in (pieces, places))
        x = self.tower(pieces, at[..., 0], jnp.maximum(at[:, 0, 2], 1))
        x = jnp.take_along_axis(x, at[..., 1][..., None], axis=1)
        half = self.crops.vectors
        x = x.reshape(-1, half, side // half, half, side // half, x.shape[-1]).mean((2, 4))
        x = x.reshape(images, -1, x.shape[-1])
        ends = [each[...].reshape(1, 1, -1) for each in (self.sub, self.whole)]
        ends = [jnp.broadcast_to(each, (images, 1, x.shape[-1])) for each in ends]
        x = jnp.concatenate([x, *ends], axis=1)
        sources = places[:, : count // _BELOW, 3]
        sources = jnp.where(sources < 0, x.shape[1] - 3 - sources, sources)  # the last two
        x = jnp.take_along_axis(x, sources[..., None], axis=1)
        made = self.up(x.reshape(-1, x.shape[-1]))
        made = self.down(jax.nn.gelu(made, approximate=False))
        return made.reshape(images, count // _BELOW, -1)


def phi4_images(keys: ConfigKeys, embed: int) -> MediaRecipe | None:
    """Return the recipe of the vision encoder; None: the checkpoint has none.

    embed: of the language model. Raises CheckpointError.
    """
    given = vision_config_of(keys)
    if given is None:
        return None
    own = ConfigKeys(given, _KEYS, _SIZES)
    crops, read = (
        _crops(own),
        ImageProcessor(
            keys.get(PREPROCESSOR, {}), "Phi4Multimodal", ("dynamic_hd", "patch_size", "size")
        ),
    )
    tower = crops.tower
    read.equal({"patch_size": tower.patch}, "vision_config's patch_size")
    if read.square(tower.image) != tower.image:
        raise read.wrong("size", f"vision_config's crop_size, {tower.image}")
    if read.resample(BICUBIC) != BICUBIC:
        raise read.wrong("resample", f"{BICUBIC}, bicubic")
    most = read.whole("dynamic_hd", _MOST_CROPS, most=_MOST_CROPS)
    scales, of = read.scales(0.5, 0.5), tower.side**2
    counts = [*(count for count in _COUNTS if count <= most), most + 1]
    skipped = range(crops.layers, tower.layers)
    processor = f"{_TOWER}.img_processor"
    return MediaRecipe(
        kind="image",
        build=lambda form: CropEncoder(crops, embed, form),
        form=CropsForm(tower.image, most),
        prepare=partial(_prepared, crops, scales),
        placeholder=_SOFT,
        token=own.whole("image_token_id", _IMAGE_TOKEN, least=0),
        piece=tower.piece,
        columns=4,
        per_row=_BELOW,
        width=embed,
        pieces=tuple(count * of for count in counts),
        unused=(
            *(f"{processor}.encoder.layers.{at}." for at in skipped),
            *(f"{processor}.{part}." for part in ("head", "post_layernorm")),
        ),
    )


def files_apart(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the config with what one file says of images and of sounds divided."""
    made = dict(config or {})
    given = made.get(PREPROCESSOR)
    if isinstance(given, Mapping):
        images = {
            key: value
            for key, value in given.items()
            if key in _OF_IMAGES or key.startswith(("do_", "image_"))
        }
        sounds = {key: value for key, value in given.items() if key not in images}
        made |= {PREPROCESSOR: images, FEATURES: made.get(FEATURES) or sounds}
    return made


def _crops(keys: ConfigKeys) -> Crops:
    """Parse `vision_config`. Raises CheckpointError for unsupported settings."""
    tower = SiglipConfig.from_keys(keys)
    if tower.embed % tower.heads or tower.side % 2 or tower.image % tower.patch:
        raise CheckpointError(
            f"vision_config has hidden_size {tower.embed} for {tower.heads} heads, image_size "
            f"{tower.image} and patch_size {tower.patch}: heads must divide the size, and patches "
            "the image into an even number"
        )
    keys.only("crop_size", tower.image)
    layer = keys.get("feature_layer")
    if type(layer) is not int or not -tower.layers - 1 <= layer <= tower.layers:
        raise CheckpointError(
            f"vision_config has feature_layer = {layer!r}; give one of its {tower.layers} layers, "
            "or as many from their end, counted from -1"
        )
    return Crops(tower, layer if layer >= 0 else tower.layers + 1 + layer)


def _prepared(crops: Crops, scales: Any, pixels: np.ndarray) -> PreparedMedia:
    """Cut u8[h, w, 3], one side of which fills its crops. Raises InvalidRequest for extreme sides.

    scales: bytes -> f32 numbers.
    """
    tower, sides = crops.tower, pixels.shape[:2]
    if min(sides) < _LEAST_SIDE:
        raise InvalidRequest(
            f"the image would be {sides[1]} by {sides[0]} pixels large in this model's crops: one "
            f"side is too long for the other, which needs at least {_LEAST_SIDE}; cut it"
        )
    high, wide = (-(-side // tower.image) for side in sides)
    whole = np.full((high * tower.image, wide * tower.image, 3), 255, np.uint8)
    whole[: sides[0], : sides[1]] = pixels
    numbers = scales.of(whole)
    seen = np.ones((high * tower.side, wide * tower.side), bool)
    rows, columns = (-(-side // tower.patch) for side in sides)
    seen[rows:], seen[:, columns:] = False, False
    grid = numbers.reshape(high, tower.image, wide, tower.image, 3).swapaxes(1, 2)
    masks = seen.reshape(high, tower.side, wide, tower.side).swapaxes(1, 2)
    every = [_shrunk(numbers, tower.image), *grid.reshape(-1, tower.image, tower.image, 3)]
    there = [np.ones((tower.side, tower.side), bool), *masks.reshape(-1, tower.side, tower.side)]
    pieces = np.concatenate([_patches(one, tower.patch) for one in every])
    places = np.zeros((len(pieces), 4), np.int32)
    order = [_places(mask) for mask in there]
    places[:, :3] = np.concatenate([each for each, _ in order])
    moved = np.concatenate([at + n * tower.side**2 for n, (_, at) in enumerate(order)])
    sources = _sources(crops, seen, high, wide)
    places[: len(sources), 3] = sources
    text = _SOFT * len(sources)
    return PreparedMedia(pieces[moved], places, None, len(sources), text)


def _patches(numbers: np.ndarray, patch: int) -> np.ndarray:
    """f32[p, 3 * patch * patch] of f32[h, w, 3]: colour, row and column of each patch."""
    high, wide = (side // patch for side in numbers.shape[:2])
    parts = numbers.reshape(high, patch, wide, patch, 3).transpose(0, 2, 4, 1, 3)
    return parts.reshape(high * wide, -1)


def _places(seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first three places of a crop's patches i32[p, 3], and their order i64[p].

    seen: bool[side, side], of its patches. Patches that are seen are spread over the whole table.
    """
    side, flat = len(seen), seen.reshape(-1)
    rows, columns = (_spread(int(line.sum()), side) for line in (seen[:, 0], seen[0]))
    table = np.where(flat, (rows[:, None] * side + columns[None]).reshape(-1), 0)
    order = np.argsort(~flat, kind="stable")
    made = np.empty((len(flat), 3), np.int32)
    made[:, 0], made[:, 1], made[:, 2] = table[order], np.argsort(order), flat.sum()
    return made, order


def _spread(count: int, side: int) -> np.ndarray:
    """i64[side]: of each row the row of a table with as many, if only so many are there."""
    step = np.float32(1.0) / np.float32(max(count, 1))
    at = np.minimum(np.arange(side, dtype=np.float32) * step, np.float32(1.0 - 1e-6))
    bounds = (1 / side + np.arange(side - 1) * (1 / side)).astype(np.float32)
    return np.searchsorted(bounds, at, side="right")


def _sources(crops: Crops, seen: np.ndarray, high: int, wide: int) -> np.ndarray:
    """i32[rows]: of each vector which four patches it is, by crop, or which separator."""
    half, each = crops.vectors, crops.vectors**2
    cells = (1 + np.arange(high * wide)[:, None]) * each + np.arange(each)[None]
    grid = cells.reshape(high, wide, half, half).swapaxes(1, 2).reshape(high * half, -1)
    rows, columns = int(seen[::2, 0].sum()), int(seen[0, ::2].sum())
    parts = [np.pad(grid[:rows, :columns], ((0, 0), (0, 1)), constant_values=_SUB).reshape(-1)]
    own = np.arange(each).reshape(half, half)
    parts += [np.asarray([_WHOLE]), np.pad(own, ((0, 0), (0, 1)), constant_values=_SUB).reshape(-1)]
    return np.concatenate(parts).astype(np.int32)


def _shrunk(numbers: np.ndarray, size: int) -> np.ndarray:
    """Bring f32[h, w, 3] to a square by cubic weights of four neighbours, as torch does."""
    for _ in range(2):
        high = len(numbers)
        at = (np.arange(size, dtype=np.float64) + 0.5) * (high / size) - 0.5
        first = np.floor(at)
        made = np.zeros((size, *numbers.shape[1:]), np.float32)
        for step in range(-1, 3):
            rows = np.clip(first + step, 0, high - 1).astype(np.int64)
            weights = _cubic(np.abs(at - first - step)).astype(np.float32)
            made += numbers[rows] * weights[:, None, None]
        numbers = made.swapaxes(0, 1)
    return numbers


def _cubic(away: np.ndarray) -> np.ndarray:
    """Weights of neighbours so far away, f64 (Keys 1981, with -0.75)."""
    near = (1.25 * away - 2.25) * away * away + 1.0
    far = ((-0.75 * away + 3.75) * away - 6.0) * away + 3.0
    return np.where(away <= 1, near, far)
