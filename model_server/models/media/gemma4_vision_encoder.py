"""Images and videos of Gemma 4: a tower over patches in two axes, whose vectors are averaged in
squares.

An image keeps its proportions and is enlarged or made smaller until its squares fill a budget of
vectors. Of a video some frames are images of a smaller budget, each behind the text of its time.
Source: Google 2026, "Gemma 4"; names and config keys are those of Hugging Face's
`Gemma4ForConditionalGeneration`, sizes and texts those of its processors.
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

from model_server.checkpoints.media_part import FILE, PREPROCESSOR, VIDEO, VIDEO_FILE, VISION
from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import KnownKeys, ignored
from model_server.models.layers.activations import Activation, activation_of
from model_server.models.layers.layers import (
    Linear,
    LiveRows,
    RmsNorm,
    UnitNorm,
    live_of,
    run_layer,
)
from model_server.models.layers.rope import Rope, Rotary, rope_frequencies
from model_server.models.media.conformer import Bounded
from model_server.models.media.image_processor import ImageProcessor
from model_server.models.media.media_recipe import (
    DecodedVideo,
    MediaRecipe,
    PreparedMedia,
    VideoRecipe,
    doubling,
)
from model_server.models.media.pixels import Shades, patches_of, places_of, shades_of
from model_server.models.media.tower_layer import attend, axial_theta, heads_axis
from model_server.models.media.vision_keys import vision_config_of
from model_server.models.weights.weight import WeightForm, weight
from model_server.sharing.images.forms import BICUBIC, BudgetForm
from model_server.sharing.videos.process import MOST_PIXELS, SampledForm
from sax.errors import CheckpointError, InvalidRequest

IMAGE_KEYS = (VISION, PREPROCESSOR, VIDEO, "image_token_id", "video_token_id")
BUDGETS = (70, 140, 280, 560, 1120)  # vectors of an image
_TOWER, _EMBEDDER = "vision_tower", "embed_vision"
_START, _SOFT, _VIDEO, _END = "<|image>", "<|image|>", "<|video|>", "<image|>"
_OWN = {
    "head_dim": 64,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "num_hidden_layers": 16,
    "num_key_value_heads": 12,
    "patch_size": 16,
    "pooling_kernel_size": 3,
    "position_embedding_size": 10240,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {},
    "rope_theta": 100.0,
    "standardize": False,
    "use_clipped_linears": False,
}
# Its projections never have biases; the rest is of the processor's, or of no part that there is.
_HARMLESS = ignored(
    "attention_bias",
    "default_output_length",
    "global_head_dim",
    "max_position_embeddings",
)
# What transformers counts tokens by is the budget, not the length that a file says beside it.
_READ = ("max_soft_tokens", "image_seq_length", "size", "patch_size", "pooling_kernel_size")
_NORMAL = {"image_mean": [0.0] * 3, "image_std": [1.0] * 3}  # colours as they are
_VIDEO_READ = (*_READ, "num_frames", "do_sample_frames", "return_metadata", "video_processor_type")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma4Sizes:
    layers: int
    embed: int
    ffw: int
    heads: int
    kv_heads: int
    head_dim: int
    patch: int  # pixels of a side
    pooled: int  # patches of a side of the square that becomes one vector
    places: int  # rows and columns that have vectors
    theta: float  # base of the rotations by row and column
    standardised: bool  # vectors are shifted and scaled behind the tower
    clipped: bool  # projections have bounds of their own, which the checkpoint holds
    activation: Activation
    epsilon: float

    @property
    def piece(self) -> int:
        """Numbers of a patch: row, column and colour."""
        return 3 * self.patch**2

    @property
    def factor(self) -> int:
        """Pixels of a side of the square that becomes one vector."""
        return self.patch * self.pooled


class AxialAttention(nnx.Module):
    """Patches see each other; half of a head is turned by the column and half by the row."""

    def __init__(self, sizes: Gemma4Sizes, name: str, form: WeightForm) -> None:
        own, kv = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        axis = heads_axis(sizes.kv_heads, form)
        self.sizes, clipped = sizes, sizes.clipped
        self.q, self.k, self.v = (
            Bounded(
                size, sizes.embed, (axis, "embed"), f"{name}.{part}_proj", form, clipped=clipped
            )
            for part, size in (("q", own), ("k", kv), ("v", kv))
        )
        self.out = Bounded(
            sizes.embed, own, ("embed", axis), f"{name}.o_proj", form, clipped=clipped
        )
        self.of_q, self.of_k = (
            RmsNorm(sizes.head_dim, (f"{name}.{part}_norm.weight",), epsilon=sizes.epsilon)
            for part in ("q", "k")
        )
        self.of_v = UnitNorm(sizes.epsilon)
        self.live: LiveRows = nnx.data(None)

    def __call__(self, x: jax.Array, lengths: jax.Array, across: Rotary, down: Rotary) -> jax.Array:
        """Maps f32[S * P, D] to the same; across, down: turns of each patch."""
        dtype = self.out.linear.kernel.get_value().dtype
        q, k, v = (
            each(x).reshape(len(x), -1, self.sizes.head_dim) for each in (self.q, self.k, self.v)
        )
        q, k = (_turned(part, across, down) for part in (self.of_q(q), self.of_k(k)))
        q, k, v = (
            part.astype(dtype).reshape(len(lengths), -1, *part.shape[1:])
            for part in (q, k, self.of_v(v))
        )
        shared = self.sizes.heads // self.sizes.kv_heads
        if shared > 1:
            k, v = jnp.repeat(k, shared, axis=2), jnp.repeat(v, shared, axis=2)
        return self.out(attend(q, k, v, lengths, scale=1.0, live=live_of(self)).reshape(len(x), -1))


def _turned(x: jax.Array, across: Rotary, down: Rotary) -> jax.Array:
    left, right = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([across(left), down(right)], axis=-1)


class BoundedFeedForward(nnx.Module):
    """down(activation(gate(x)) * up(x)) of projections whose numbers may be clipped."""

    def __init__(self, sizes: Gemma4Sizes, name: str, form: WeightForm) -> None:
        embed, ffw, clipped = sizes.embed, sizes.ffw, sizes.clipped
        self.gate, self.up = (
            Bounded(ffw, embed, ("ffw", "embed"), f"{name}.{part}_proj", form, clipped=clipped)
            for part in ("gate", "up")
        )
        down = f"{name}.down_proj"
        self.down = Bounded(embed, ffw, ("embed", "ffw"), down, form, clipped=clipped)
        self.activation = sizes.activation

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down(self.activation(self.gate(x)) * self.up(x))


class PatchLayer(nnx.Module):
    """Norms before and behind attention, and before and behind the feed-forward."""

    def __init__(self, sizes: Gemma4Sizes, name: str, form: WeightForm) -> None:
        def norm(part: str) -> RmsNorm:
            tensor = (f"{name}.{part}_layernorm.weight",)
            return RmsNorm(sizes.embed, tensor, epsilon=sizes.epsilon)

        self.before_attention, self.after_attention = norm("input"), norm("post_attention")
        self.before_ffw, self.after_ffw = norm("pre_feedforward"), norm("post_feedforward")
        self.attention = AxialAttention(sizes, f"{name}.self_attn", form)
        self.ffw = BoundedFeedForward(sizes, f"{name}.mlp", form)

    def __call__(self, x: jax.Array, lengths: jax.Array, across: Rotary, down: Rotary) -> jax.Array:
        mixed = self.attention(self.before_attention(x), lengths, across, down)
        x = x + self.after_attention(mixed)
        return x + self.after_ffw(self.ffw(self.before_ffw(x)))


class Gemma4Encoder(nnx.Module):
    """A MediaEncoder: a piece is a patch, and its place a row and a column."""

    def __init__(self, sizes: Gemma4Sizes, embed: int, form: WeightForm) -> None:
        """embed: of the language model."""
        self.sizes, front = sizes, f"{_TOWER}.patch_embedder"
        kernel = (f"{front}.input_proj.weight",)
        self.patches = Linear(sizes.embed, sizes.piece, ("embed", None), kernel, form=form)
        self.table = weight(
            (2, sizes.places, sizes.embed),
            (None, None, "embed"),
            (f"{front}.position_embedding_table",),
            dtype=jnp.float32,
            spread=0.02,
        )
        names = (f"{_TOWER}.encoder.layers.{index}" for index in range(sizes.layers))
        self.layers = nnx.List([PatchLayer(sizes, name, form) for name in names])
        ends = ("std_bias", "std_scale") if sizes.standardised else ()
        self.standard = nnx.List(
            [weight((sizes.embed,), (None,), (f"{_TOWER}.{e}",), dtype=jnp.float32) for e in ends]
        )
        self.norm = UnitNorm(sizes.epsilon)
        projection = (f"{_EMBEDDER}.embedding_projection.weight",)
        self.projection = Linear(embed, sizes.embed, ("embed", None), projection, form=form)
        frequencies = rope_frequencies(sizes.head_dim // 2, sizes.theta)
        self.rope = Rope(frequencies=tuple(frequencies.tolist()))

    def __call__(self, pieces: jax.Array, places: jax.Array, lengths: jax.Array) -> jax.Array:
        images, count, size = pieces.shape
        rows, columns = places.reshape(-1, 2).T
        across, down = self.rope.at(columns), self.rope.at(rows)
        of_columns, of_rows = self.table[...]
        at = of_columns.at[columns].get(mode="clip") + of_rows.at[rows].get(mode="clip")
        x = self.patches(2 * (pieces.reshape(-1, size) - 0.5)) + at
        for layer in self.layers:
            x = run_layer(layer, x, lengths, across, down)
        vectors = self.projection(self.norm(self._pooled(x)))
        return vectors.reshape(images, count // self.sizes.pooled**2, -1)

    def _pooled(self, x: jax.Array) -> jax.Array:
        """Maps patches f32[S * P, D], one square behind the other, to vectors f32[S * R, D]."""
        seen = x.reshape(-1, self.sizes.pooled**2, self.sizes.embed).mean(1)
        seen = seen * self.sizes.embed**0.5
        if not len(self.standard):
            return seen
        bias, scale = (each[...][None] for each in self.standard)
        return (seen - bias) * scale


def gemma4_vision(
    keys: ConfigKeys, values: Mapping[str, Any], embed: int, window: int | None
) -> MediaRecipe | None:
    """Return the recipe of Gemma 4's vision encoder; None: the checkpoint has none.

    embed: of the language model. window: of the layers in which tokens of an image see each other;
    None: in none. Raises CheckpointError, InvalidRequest.
    """
    given = vision_config_of(keys)
    if given is None:
        return None
    sizes = _sizes(ConfigKeys(given, KnownKeys("gemma4_vision", tuple(_OWN), _HARMLESS), _OWN))
    read = _processor(keys.get(PREPROCESSOR, {}), sizes, _READ, FILE)
    budget = _budget(values, _budget_of(read, 280), sizes.factor)
    video, frame_budget = _videos(keys, sizes)
    most = max(budget, frame_budget)
    if most * sizes.pooled > sizes.places:
        raise CheckpointError(
            f"vision_config has position_embedding_size = {sizes.places}; images of up to {most} "
            f"tokens need {most * sizes.pooled}"
        )
    if window is not None and window < most:
        raise CheckpointError(
            f"config.json has sliding_window {window}, shorter than the {most} tokens of an image, "
            "which see each other: publish the model with a lower IMAGE_PIXELS, or with "
            "IMAGES=false, for text only"
        )
    return MediaRecipe(
        kind="image",
        build=lambda weights: Gemma4Encoder(sizes, embed, weights),
        form=BudgetForm(sizes.factor, budget, read.resample(BICUBIC)),
        prepare=partial(prepared, sizes, _shades(read), _SOFT),
        placeholder=_SOFT,
        token=keys.whole("image_token_id", 258880, least=0),
        piece=sizes.piece,
        columns=2,
        per_row=sizes.pooled**2,
        width=embed,
        pieces=doubling(most * sizes.pooled**2, sizes.pooled**2),
        bidirectional=window is not None,
        # Of two rows that nearly fit one is left; rounding may take the last square of it, too.
        least=min(budget, frame_budget) // 2 - 1,
        video=video,
    )


def prepared(sizes: Gemma4Sizes, shades: Shades, soft: str, pixels: np.ndarray) -> PreparedMedia:
    """Cut u8[h, w, 3], whose sides are whole squares. soft: text of the token of a vector."""
    high, wide = (side // sizes.factor for side in pixels.shape[:2])
    return PreparedMedia(
        pieces=patches_of(pixels, shades, sizes.patch, sizes.pooled, colours_last=True),
        places=places_of(high * sizes.pooled, wide * sizes.pooled, sizes.pooled),
        grid=(1, high, wide),
        rows=high * wide,
        text=f"{_START}{soft * (high * wide)}{_END}",
    )


def _videos(keys: ConfigKeys, sizes: Gemma4Sizes) -> tuple[VideoRecipe, int]:
    """Return how videos are prepared, and the vectors of a frame. Raises CheckpointError."""
    read = _processor(keys.get(VIDEO, {}), sizes, _VIDEO_READ, VIDEO_FILE)
    budget, frames = _budget_of(read, 70), read.whole("num_frames", 32)
    if frames * budget * sizes.factor**2 > MOST_PIXELS:
        raise read.wrong("num_frames", f"frames of at most {MOST_PIXELS} pixels together")
    shades = _shades(read)

    def prepare(video: DecodedVideo) -> PreparedMedia:
        first, *after = (
            _timed(prepared(sizes, shades, _VIDEO, frame), at, index / video.rate)
            for at, (frame, index) in enumerate(zip(video.frames, video.indices, strict=True))
        )
        return first._replace(after=tuple(after))

    square = BudgetForm(sizes.factor, budget, read.resample(BICUBIC))
    recipe = VideoRecipe(
        form=SampledForm(square, frames),
        prepare=prepare,
        placeholder=_VIDEO,
        marked="",
        token=keys.whole("video_token_id", 258884, least=0),
    )
    return recipe, budget


def _timed(part: PreparedMedia, at: int, seconds: float) -> PreparedMedia:
    """Return a frame behind the text of its time; at: its number among those taken."""
    time = f"{int(seconds // 60):02d}:{int(seconds % 60):02d}"
    return part._replace(text=f"{' ' if at else ''}{time} {part.text}")


def _sizes(own: ConfigKeys) -> Gemma4Sizes:
    """Return the sizes of vision_config. Raises CheckpointError."""
    heads, kv_heads = own.whole("num_attention_heads"), own.whole("num_key_value_heads")
    head_dim = own.whole("head_dim")
    if heads % kv_heads or head_dim % 4:
        raise CheckpointError(
            f"vision_config has {heads} heads of {head_dim} numbers and {kv_heads} of keys: the "
            "first must be a multiple of the last, and their numbers one of 4"
        )
    return Gemma4Sizes(
        layers=own.whole("num_hidden_layers"),
        embed=own.whole("hidden_size"),
        ffw=own.whole("intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        patch=own.whole("patch_size"),
        pooled=own.whole("pooling_kernel_size"),
        places=own.whole("position_embedding_size"),
        theta=axial_theta(own, "gemma4"),
        standardised=own.flag("standardize"),
        clipped=own.flag("use_clipped_linears"),
        activation=activation_of(own.get("hidden_activation")),
        epsilon=own.number("rms_norm_eps"),
    )


def _processor(
    given: Mapping[str, Any], sizes: Gemma4Sizes, known: tuple[str, ...], file: str
) -> ImageProcessor:
    """Return what a file says. Where `do_normalize` is false, as it is of images that say nothing,
    its colours are neither shifted nor divided, whatever it says of them. Raises CheckpointError.
    """
    made = {key: value for key, value in given.items() if value is not None}
    if made.get("do_normalize", file == VIDEO_FILE) is False:
        made = {k: v for k, v in made.items() if k not in ("do_normalize", *_NORMAL)}
    read = ImageProcessor({**_NORMAL, **made}, "Gemma4", known, file=file)
    if not str(made.get("video_processor_type", "Gemma4")).startswith("Gemma4"):
        raise read.wrong("video_processor_type", "the processors of Gemma4")
    read.equal({"patch_size": sizes.patch, "pooling_kernel_size": sizes.pooled}, "vision_config's")
    return read


def _shades(read: ImageProcessor) -> Shades:
    return shades_of(read.colours((0.0,) * 3, (1.0,) * 3))


def _budget_of(read: ImageProcessor, usual: int) -> int:
    """Return the most vectors of an image. Raises CheckpointError."""
    budget = read.whole("max_soft_tokens", usual)
    if budget not in BUDGETS:
        raise read.wrong("max_soft_tokens", f"one of {', '.join(map(str, BUDGETS))}")
    return budget


def _budget(values: Mapping[str, Any], own: int, factor: int) -> int:
    """Return the budget of IMAGE_PIXELS; own: without it. Raises InvalidRequest."""
    asked = values.get("IMAGE_PIXELS")
    if asked is None:
        return own
    least, most = BUDGETS[0] * factor**2, BUDGETS[-1] * factor**2
    if type(asked) is not int or not least <= asked <= most:
        raise InvalidRequest(
            f"IMAGE_PIXELS is {asked!r}: give a whole number from {least}, the pixels of "
            f"{BUDGETS[0]} tokens, to {most}, those of {BUDGETS[-1]}",
            param="overrides.IMAGE_PIXELS",
        )
    return max(budget for budget in BUDGETS if budget * factor**2 <= asked)
