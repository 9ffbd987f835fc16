"""Images of Gemma 3n: every one becomes the same number of vectors, around a MobileNet-V5.

The token behind an image is of the encoder's own vocabulary, so its vector is made with them.
Source: Google 2025, "Gemma 3n"; names and config keys are those of Hugging Face's
`Gemma3nForConditionalGeneration`, sizes and texts those of its processor.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_server.checkpoints.media_part import PREPROCESSOR, VISION
from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import KnownKeys, ignored
from model_server.models.media.image_processor import ImageProcessor
from model_server.models.media.media_recipe import MediaRecipe, PreparedMedia
from model_server.models.media.mobilenet import (
    GEMMA_3N,
    MobileBlock,
    MobileNet,
    MobileNetConfig,
    Stages,
    rounded_channels,
)
from model_server.models.media.pixels import Shades, patches_of, shades_of
from model_server.models.media.projector import Gemma3nEmbedder
from model_server.models.media.vision_keys import vision_config_of
from model_server.models.weights.weight import WeightForm
from model_server.sharing.images.forms import BILINEAR, SquareForm
from sax.errors import CheckpointError

IMAGE_KEYS_3N = (
    *(VISION, PREPROCESSOR, "image_token_id"),
    *("boi_token_id", "eoi_token_id", "vision_soft_tokens_per_image"),
)
_TOWER, _EMBEDDER = "vision_tower.timm_model", "embed_vision"
_SOFT, _IMAGE, _RESOLUTION = "<image_soft_token>", 768, 16
_OWN = {
    "architecture": "mobilenetv5_300m_enc",
    "hidden_size": 2048,
    "model_args": {},
    "rms_norm_eps": 1e-6,
    "vocab_offset": 262144,
    "vocab_size": 128,
}
_HARMLESS = ignored("do_pooling", "label_names", "num_classes")
_NORMAL = {"image_mean": [0.0] * 3, "image_std": [1.0] * 3}  # colours as they are
# What preprocessor_config.json, where it is one file of both, says of sounds alone.
_OF_SOUNDS = frozenset(
    ("audio_seq_length", "dither", "feature_extractor_type", "feature_size", "fft_length")
    + ("fft_overdrive", "frame_length", "frame_length_ms", "hop_length", "hop_length_ms")
    + ("input_scale_factor", "max_frequency", "mel_floor", "min_frequency", "padding_side")
    + ("padding_value", "per_bin_mean", "per_bin_stddev", "preemphasis", "preemphasis_htk_flavor")
    + ("return_attention_mask", "sampling_rate")
)
# Keys of timm's function that builds the tower, and of its blocks, with values that change nothing.
_ARGUMENTS = ("block_args", "channel_multiplier", "msfa_output_resolution")
_MOST_BLOCKS, _MOST_CHANNELS, _MOST_SIDE = 1000, 2**16 - 1, 31
_UNUSED_OF_BLOCKS = {"act_layer": None, "noskip": False, "se_ratio": 0.0}
_BLOCK_KEYS = {
    "er": ("exp_kernel_size", "exp_ratio"),
    "uir": ("dw_kernel_size_start", "dw_kernel_size_mid", "exp_ratio"),
    "mqa": ("dw_kernel_size", "num_heads", "key_dim", "value_dim", "kv_stride"),
}
_UNUSED_BY_KIND = {
    "er": {"force_in_chs": 0, "pw_kernel_size": 1},
    "uir": {"dw_kernel_size_end": 0},
    "mqa": {},
}


class _Ends(NamedTuple):
    """Tokens in the place of an image: its vectors, and the one behind them."""

    vocab: int  # of the encoder
    soft: int  # vectors of an image
    row: int | None  # of the vocabulary: the token behind an image; None: it is the text's
    token: int | None  # its id


class Gemma3nImages(nnx.Module):
    """A MediaEncoder: a piece is the square that becomes one vector."""

    def __init__(
        self,
        config: MobileNetConfig,
        ends: _Ends,
        embed: int,
        form: WeightForm,
        *,
        epsilon: float,
    ) -> None:
        """embed: of the language model."""
        self.config, self.ends = config, ends
        self.tower = MobileNet(config, _TOWER, form)
        self.embedder = Gemma3nEmbedder(
            ends.vocab, config.embed, embed, _EMBEDDER, form, epsilon=epsilon
        )

    def __call__(self, pieces: jax.Array, places: jax.Array, lengths: jax.Array) -> jax.Array:
        side, count = self.config.resolution, self.ends.soft
        patch = self.config.image // side
        squares = pieces[:, :count].reshape(-1, side, side, patch, patch, 3)
        pixels = squares.swapaxes(2, 3).reshape(-1, side * patch, side * patch, 3)
        seen = self.tower(pixels).reshape(-1, self.config.embed) * self.config.embed**0.5
        vectors = self.embedder.vectors(seen).reshape(len(pieces), count, -1)
        if self.ends.row is None:
            return vectors
        last = self.embedder.tokens((self.ends.row,))[None]
        last = jnp.broadcast_to(last, (len(pieces), *last.shape[1:]))
        return jnp.concatenate([vectors, last], axis=1)


def gemma3n_vision(keys: ConfigKeys, embed: int) -> MediaRecipe | None:
    """Return the recipe of Gemma 3n's vision encoder; None: the checkpoint has none.

    embed: of the language model. Raises CheckpointError.
    """
    given = vision_config_of(keys)
    if given is None:
        return None
    own = ConfigKeys(given, KnownKeys("gemma3n_vision", tuple(_OWN), _HARMLESS), _OWN)
    own.only("architecture", _OWN["architecture"])
    read = _processor(keys.get(PREPROCESSOR, {}))
    config = _config(own, read.square(_IMAGE))
    ends = _ends(keys, own, read, config.resolution)
    epsilon, patch = own.number("rms_norm_eps"), config.image // config.resolution
    shades = shades_of(read.colours((0.5,) * 3, (0.5,) * 3))
    return MediaRecipe(
        kind="image",
        build=lambda form: Gemma3nImages(config, ends, embed, form, epsilon=epsilon),
        form=SquareForm(config.image, None, read.resample(BILINEAR)),
        prepare=partial(_prepared, shades, patch, ends),
        placeholder=_SOFT,
        token=keys.whole("image_token_id", 262145, least=0),
        end=ends.token,
        piece=3 * patch**2,
        columns=1,
        per_row=1,
        width=embed,
        pieces=(_rows(ends),),
    )


def _rows(ends: _Ends) -> int:
    return ends.soft + (ends.row is not None)


def _prepared(shades: Shades, patch: int, ends: _Ends, pixels: np.ndarray) -> PreparedMedia:
    pieces = patches_of(pixels, shades, patch, 1, colours_last=True)
    text = f"\n\n<start_of_image>{_SOFT * ends.soft}<end_of_image>\n\n"
    return PreparedMedia(pieces, np.zeros((len(pieces), 1), np.int32), None, _rows(ends), text)


def _processor(given: Mapping[str, Any]) -> ImageProcessor:
    """Return what preprocessor_config.json says of images, beside sounds. Raises CheckpointError.

    Where `do_normalize` is false colours are neither shifted nor divided, whatever it says of them.
    """
    made = {k: v for k, v in given.items() if v is not None and k not in _OF_SOUNDS}
    if made.get("do_normalize", bool(made)) is False:
        made = {k: v for k, v in made.items() if k not in ("do_normalize", *_NORMAL)} | _NORMAL
    off = ("do_center_crop", "do_pad")
    return ImageProcessor(made, "Siglip", ("size", "image_seq_length"), off)


def _ends(keys: ConfigKeys, own: ConfigKeys, read: ImageProcessor, side: int) -> _Ends:
    """Return what stands in the place of an image. Raises CheckpointError."""
    vocab, first, soft = own.whole("vocab_size"), own.whole("vocab_offset"), side**2
    told = keys.whole("vision_soft_tokens_per_image", 256)
    if told != soft:
        raise CheckpointError(
            f"config.json has vision_soft_tokens_per_image = {told}, and its vision encoder gives "
            f"{side} x {side} vectors (msfa_output_resolution): both must be the same number"
        )
    read.equal({"image_seq_length": soft}, "vision_soft_tokens_per_image")
    start, end = keys.whole("boi_token_id", 255999), keys.whole("eoi_token_id", 262144)
    if start >= first or end >= first + vocab:
        raise CheckpointError(
            f"config.json has boi_token_id = {start} and eoi_token_id = {end}, and its "
            f"vision_config vectors of the {vocab} tokens from {first} on: the first must lie "
            "below them, and the second not behind them"
        )
    inside = end >= first
    return _Ends(vocab, soft, end - first if inside else None, end if inside else None)


def _config(own: ConfigKeys, image: int) -> MobileNetConfig:
    """Return the sizes of the tower; image: pixels of a side. Raises CheckpointError."""
    args: Any = own.get("model_args", {})
    unknown = sorted(set(args) - set(_ARGUMENTS)) if isinstance(args, Mapping) else ["no object"]
    if unknown:
        raise CheckpointError(
            f"vision_config has model_args = {args!r}; supported are {', '.join(_ARGUMENTS)}, not "
            f"{', '.join(map(str, unknown))}"
        )
    resolution = args.get("msfa_output_resolution", _RESOLUTION)
    config = MobileNetConfig(
        stages=_narrowed(_stages(args.get("block_args")), args.get("channel_multiplier", 1.0)),
        embed=own.whole("hidden_size"),
        image=image,
        resolution=_whole("msfa_output_resolution", resolution, 1, image),
    )
    if config.joined % config.resolution or image % config.resolution:
        raise CheckpointError(
            f"images of {image} pixels a side have {config.joined} places a side in the vision "
            f"encoder: both must be multiples of its {config.resolution} vectors a side"
        )
    return config


def _narrowed(stages: Stages, by: Any) -> Stages:
    """Return the stages with so many times their channels, rounded. Raises CheckpointError."""
    if type(by) not in (int, float) or not 0 < by <= 1:
        raise _wrong("channel_multiplier", by, "a number above 0, and at most 1")
    return tuple(
        tuple(block._replace(channels=rounded_channels(block.channels * by)) for block in stage)
        for stage in stages
    )


def _stages(given: Any) -> Stages:
    """Return the blocks of the tower as timm describes them. Raises CheckpointError."""
    if given is None:
        return GEMMA_3N
    stages = cast("list[Any]", given) if isinstance(given, list) else []
    if len(stages) < 2 or not all(isinstance(stage, list) and stage for stage in stages):
        raise _wrong("block_args", given, "at least two lists of blocks")
    if sum(map(len, stages)) > _MOST_BLOCKS:
        raise CheckpointError(f"vision_config's block_args has more than {_MOST_BLOCKS} blocks")
    made = tuple(tuple(map(_block, stage)) for stage in stages)
    late = any(block.stride > 1 for stage in made for block in stage[1:])
    if made[0][0].stride != 2 or late:
        raise _wrong(
            "block_args", "a stride of another block", "2 in the first stage, of first blocks alone"
        )
    return made


def _block(given: Any) -> MobileBlock:
    """Return one block. Raises CheckpointError."""
    kind = given.get("block_type") if isinstance(given, Mapping) else None
    if kind not in _BLOCK_KEYS:
        raise _wrong("block_type", kind, f"one of {', '.join(_BLOCK_KEYS)}")
    unused = {**_UNUSED_OF_BLOCKS, **_UNUSED_BY_KIND[kind]}
    known = {"block_type", "out_chs", "stride", *_BLOCK_KEYS[kind], *unused}
    for key, value in given.items():
        if key not in known or unused.get(key, value) != value:
            raise _wrong(key, value, f"of a block {kind}, {', '.join(sorted(known - {*unused}))}")

    def whole(key: str, least: int, most: int, usual: int) -> int:
        return _whole(key, given.get(key, usual), least, most)

    sides = {
        "er": ("exp_kernel_size", ""),
        "uir": ("dw_kernel_size_start", "dw_kernel_size_mid"),
        "mqa": ("dw_kernel_size", ""),
    }[kind]
    side, middle = (whole(key, kind != "uir", _MOST_SIDE, 3) if key else 0 for key in sides)
    block = MobileBlock(
        kind,
        channels=_whole("out_chs", given.get("out_chs"), 1, _MOST_CHANNELS),
        stride=whole("stride", 1, 1 if kind == "mqa" else 2, 1),
        expansion=_expansion(given.get("exp_ratio", 1.0)),
        side=side,
        middle=middle,
    )
    if kind != "mqa":
        if block.stride > 1 and not side and not middle:
            raise _wrong("stride", block.stride, "1 in a block without a kernel")
        return block
    size = whole("key_dim", 1, _MOST_CHANNELS, 64)
    if whole("value_dim", 1, _MOST_CHANNELS, 64) != size:
        raise _wrong("value_dim", given["value_dim"], f"the key_dim, {size}")
    return block._replace(
        heads=whole("num_heads", 1, _MOST_CHANNELS, 8),
        head_dim=size,
        key_stride=whole("kv_stride", 1, _MOST_SIDE, 1),
    )


def _expansion(value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value <= 64:
        raise _wrong("exp_ratio", value, "a number above 0, and at most 64")
    return float(value)


def _whole(key: str, value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise _wrong(key, value, f"a whole number from {least} to {most}")
    return value


def _wrong(key: str, value: Any, wanted: str) -> CheckpointError:
    return CheckpointError(f"vision_config's model_args has {key} = {value!r}; supported: {wanted}")
