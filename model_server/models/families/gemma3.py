"""Gemma 3: Gemma 2 with normed queries and keys, and two kinds of rotary positions.

Sliding layers have their own rotary base; the others may be stretched to long contexts. The
vision encoder is SigLIP's tower.
Source: Kamath et al. 2025 (arXiv:2503.19786); names and config keys are those of Hugging Face's
`Gemma3ForCausalLM` and `Gemma3ForConditionalGeneration`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from flax import nnx

from model_server.checkpoints.media_part import PREPROCESSOR, VISION
from model_server.models.config_keys import ConfigKeys, sliding_layers
from model_server.models.families.gemma2 import SANDWICH, sandwich_recipe
from model_server.models.families.qwen3 import normed_attention
from model_server.models.families.ropes import FULL, SLIDING, ropes_by_kind
from model_server.models.known_keys import DECODER_OFF, KnownKeys, ignored
from model_server.models.layers.layers import Linear, RmsNorm
from model_server.models.layers.rope import Rope
from model_server.models.media.image_processor import ImageProcessor, Scales
from model_server.models.media.media_recipe import MediaRecipe, PreparedMedia, encoders
from model_server.models.media.siglip import SiglipConfig, SiglipTower
from model_server.models.recipe import Family, Recipe
from model_server.models.weights.source import Tensor, Transposed
from model_server.models.weights.weight import WeightForm
from model_server.sharing.images.forms import SquareForm
from sax.errors import CheckpointError

_SEEN = (VISION, PREPROCESSOR, "image_token_id", "image_token_index", "mm_tokens_per_image")
_IMAGE_TOKEN, _ROWS = 262144, 256
_START, _SOFT, _END = "<start_of_image>", "<image_soft_token>", "<end_of_image>"
_BILINEAR = 2
_READ = ("image_seq_length", "size")
# Settings of crops, which nobody makes.
_CROPS = ("pan_and_scan_max_num_crops", "pan_and_scan_min_crop_size")
_CROPS += ("pan_and_scan_min_ratio_to_activate",)


@dataclass(frozen=True, slots=True)
class Gemma3Sizes:
    """Sizes of the tower and of what becomes of its vectors."""

    tower: SiglipConfig
    side: int  # vectors of a row or a column
    embed: int  # of the language model

    @property
    def pooled(self) -> int:
        """Pieces of a row or a column that become one vector."""
        return self.tower.side // self.side

    @property
    def rows(self) -> int:
        return self.side**2

    def order(self) -> np.ndarray:
        """Return i32[p]: pieces in the order of the vectors; those that are in none come last."""
        grid = np.arange(self.tower.side**2, dtype=np.int32).reshape(self.tower.side, -1)
        seen = self.side * self.pooled
        squares = grid[:seen, :seen].reshape(self.side, self.pooled, self.side, self.pooled)
        first = squares.swapaxes(1, 2).reshape(-1)
        return np.concatenate([first, np.setdiff1d(grid, first)])


class Gemma3Encoder(nnx.Module):
    """A MediaEncoder."""

    def __init__(self, sizes: Gemma3Sizes, form: WeightForm) -> None:
        projector = "multi_modal_projector"
        self.pooled = sizes.pooled**2
        self.tower = SiglipTower(sizes.tower, "vision_tower", form)
        self.norm = RmsNorm(
            sizes.tower.embed,
            (f"{projector}.mm_soft_emb_norm.weight",),
            epsilon=sizes.tower.epsilon,
            plus_one=True,
        )
        self.projection = Linear(
            sizes.embed,
            sizes.tower.embed,
            ("embed", None),
            Transposed(Tensor(f"{projector}.mm_input_projection_weight")),
            form=form,
        )

    def __call__(self, pieces: jax.Array, places: jax.Array, lengths: jax.Array) -> jax.Array:
        seen = self.tower(pieces, places, lengths)
        images, count, size = seen.shape
        rows = count // self.pooled
        squares = seen[:, : rows * self.pooled].reshape(images * rows, self.pooled, size)
        return self.projection(self.norm(squares.mean(1))).reshape(images, rows, -1)


def gemma3_vision(keys: ConfigKeys, embed: int, window: int | None) -> MediaRecipe | None:
    """Return the recipe of the vision encoder; None: the checkpoint has none.

    embed: of the language model. window: of its sliding layers. Raises CheckpointError.
    """
    given = keys.get(VISION)
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise CheckpointError(f"config.json has vision_config = {given!r}; it must be an object")
    sizes = _sizes(SiglipConfig.from_hf(given), keys.whole("mm_tokens_per_image", _ROWS), embed)
    if window is not None and window < sizes.rows:
        raise CheckpointError(
            f"config.json has sliding_window {window}, shorter than the {sizes.rows} tokens of an "
            "image, which see each other: publish the model with IMAGES=false, for text only"
        )
    token = keys.get("image_token_id", keys.get("image_token_index", _IMAGE_TOKEN))
    if type(token) is not int or token < 0:
        raise CheckpointError(f"config.json has image_token_index = {token!r}; it must be a token")
    return _recipe(sizes, token, _processor(keys.get(PREPROCESSOR, {}), sizes))


def _sizes(tower: SiglipConfig, rows: int, embed: int) -> Gemma3Sizes:
    side = math.isqrt(rows)
    if side**2 != rows or side > tower.side:
        raise CheckpointError(
            f"config.json has mm_tokens_per_image = {rows}; it must be a square number of at most "
            f"the {tower.side**2} pieces of an image"
        )
    return Gemma3Sizes(tower, side, embed)


def _processor(given: Any, sizes: Gemma3Sizes) -> tuple[SquareForm, Scales]:
    """Return how images are resized and scaled. Raises CheckpointError."""
    read = ImageProcessor(given, "Gemma3", (*_READ, *_CROPS), off=("do_pan_and_scan",))
    size, rows = read.square(sizes.tower.image), read.whole("image_seq_length", sizes.rows)
    if size != sizes.tower.image:
        raise read.wrong("size", f"vision_config's image_size, {sizes.tower.image}")
    if rows != sizes.rows:
        raise read.wrong("image_seq_length", f"config.json's mm_tokens_per_image, {sizes.rows}")
    return SquareForm(size, None, read.resample(_BILINEAR)), read.scales(0.5, 0.5)


def _recipe(sizes: Gemma3Sizes, token: int, processor: tuple[SquareForm, Scales]) -> MediaRecipe:
    (form, scales), tower, order = processor, sizes.tower, sizes.order()
    per_row = sizes.pooled**2
    text = f"\n\n{_START}{_SOFT * sizes.rows}{_END}\n\n"

    def prepare(pixels: np.ndarray) -> PreparedMedia:
        pieces = _cut(scales.of(pixels), tower)[order]
        return PreparedMedia(pieces, order[:, None], (1, sizes.side, sizes.side), sizes.rows, text)

    return MediaRecipe(
        kind="image",
        build=lambda weights: Gemma3Encoder(sizes, weights),
        form=form,
        prepare=prepare,
        placeholder=_START,
        token=token,
        piece=tower.piece,
        columns=1,
        per_row=per_row,
        width=sizes.embed,
        pieces=(-(-(tower.side**2) // per_row) * per_row,),
        bidirectional=True,
        least=sizes.rows,
    )


def _cut(pixels: np.ndarray, tower: SiglipConfig) -> np.ndarray:
    """Cut f32[h, w, 3] into pieces f32[p, C], row by row, each colour by colour."""
    side, patch = tower.side, tower.patch
    squares = pixels[: side * patch, : side * patch].reshape(side, patch, side, patch, 3)
    return np.ascontiguousarray(squares.transpose(0, 2, 4, 1, 3).reshape(side * side, -1))


# The reference stores the cap of attention and applies none; the pattern with an underscore is a
# note beside layer_types. The rest are the tokens around those of an image.
_UNUSED = ignored(
    "_sliding_window_pattern",
    "attn_logit_softcapping",
    "boi_token_id",
    "boi_token_index",
    "eoi_token_id",
    "eoi_token_index",
)
KEYS = KnownKeys(
    "gemma3",
    (*SANDWICH, "rope_local_base_freq", "sliding_window_pattern", *_SEEN),
    {**DECODER_OFF, **_UNUSED},
)
# The larger models are published with hardly any keys.
_DEFAULTS = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "max_position_embeddings": 131072,
}
_GLOBAL_BASE, _LOCAL_BASE = 1e6, 1e4


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    pattern = keys.whole("sliding_window_pattern")
    slides = sliding_layers(keys, lambda index: (index + 1) % pattern != 0)
    whole, local = ropes_of(keys)
    recipe = sandwich_recipe(
        keys,
        values,
        slides,
        [local if slide else whole for slide in slides],
        normed_attention(keys, plus_one=True),
        causal=not keys.flag("use_bidirectional_attention"),  # true in EmbeddingGemma
    )
    window = keys.whole_or_none("sliding_window") if any(slides) else None
    seen = gemma3_vision(keys, recipe.embed, window)
    return replace(recipe, media=encoders(seen))


def ropes_of(keys: ConfigKeys) -> tuple[Rope, Rope]:
    """Return the ropes of full and of sliding layers."""
    head_dim, given = keys.whole("head_dim"), keys.get("rope_parameters")
    if given is None:
        stretch = keys.get("rope_scaling") or {}
        given = {
            FULL: {"rope_theta": keys.number("rope_theta", _GLOBAL_BASE)} | stretch,
            SLIDING: {"rope_theta": keys.number("rope_local_base_freq", _LOCAL_BASE)},
        }
    bases = {FULL: _GLOBAL_BASE, SLIDING: _LOCAL_BASE}
    ropes = ropes_by_kind(keys, head_dim, given, bases)
    return ropes[FULL], ropes[SLIDING]


FAMILY = Family("gemma3", ("gemma3_text", "gemma3"), "Gemma 3, EmbeddingGemma", configure)
