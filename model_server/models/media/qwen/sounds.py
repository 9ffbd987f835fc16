"""Sounds of Qwen2.5-Omni and Qwen3-Omni: the recipe around encoders that hear a chunk at a time.

A spectrogram is cut into chunks, which convolutions shorten each by itself, and a vector is told
its place in its chunk alone; the layers let those of one chunk, or of a window of some chunks, see
each other. So a long sound is encoded in parts of whole windows, with the same vectors.

Sources: Xu et al. 2025 (arXiv:2503.20215), Xu et al. 2025 (arXiv:2509.17765); names and config keys
are those of Hugging Face's `Qwen2_5OmniThinkerForConditionalGeneration` and
`Qwen3OmniMoeThinkerForConditionalGeneration`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_server.checkpoints.media_part import AUDIO, FEATURES, PREPROCESSOR
from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import KnownKeys, anything
from model_server.models.layers.attention import AttentionSources
from model_server.models.layers.layers import Linear, run_layer
from model_server.models.media.media_recipe import MediaRecipe, PreparedMedia, doubling
from model_server.models.media.tower_layer import TowerAttention, TowerLayer, before, dense
from model_server.models.media.whisper_encoders import (
    AudioTowerConfig,
    FrameConvolution,
    TowerNames,
    audio_layer,
    check_spectrogram,
    layer_norm,
    sound_settings,
)
from model_server.models.weights.weight import WeightForm, weight
from model_server.sharing.audio.process import HOP, RATE
from model_server.sharing.audio.spectrogram import spectrogram
from sax.errors import CheckpointError, InvalidRequest

_TOWER = "audio_tower"
_PART = 3000  # frames that are encoded together at most, 30 s, where a window is not longer
_LEAST = 500  # frames of the shortest compiled sound
_FRAME = 400  # samples of a frame, which ends in the silence behind a sound
_BASE = 10000.0  # of the positions in a chunk
_LEAST_SIZE = 4  # numbers of a vector
# What transformers' feature extractor says of itself, also in a file that it shares with images.
_FEATURE_KEYS = frozenset(
    ("chunk_length", "dither", "feature_extractor_type", "feature_size", "hop_length", "n_fft")
    + ("n_samples", "nb_max_frames", "padding", "padding_side", "padding_value")
    + ("return_attention_mask", "sampling_rate", "truncation")
)
_HARMLESS = ("activation_dropout", "dropout", "encoder_layerdrop", "init_std", "scale_embedding")
_HARMLESS += ("num_hidden_layers", "initializer_range", "tf_legacy_loss")


def with_files_apart(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config.json with what one file says of images and of sounds divided."""
    given = config.get(PREPROCESSOR)
    if not isinstance(given, Mapping):
        return dict(config)
    both = cast("Mapping[str, Any]", given)
    sounds = {key: value for key, value in both.items() if key in _FEATURE_KEYS}
    images = {key: value for key, value in both.items() if key not in _FEATURE_KEYS}
    return {**config, PREPROCESSOR: images, FEATURES: config.get(FEATURES) or sounds}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """Sizes of the chunks into which a sound is divided."""

    frames: int  # of a chunk
    vectors: int  # that become of a chunk
    each: int  # frames of a vector, so that each * vectors is no less than the frames
    window: int = 1  # chunks whose vectors see each other
    longest: int  # seconds of a sound

    @property
    def pieces(self) -> int:
        """Pieces of a chunk: its frames, and as many empty ones as fill its vectors."""
        return self.each * self.vectors

    @property
    def part(self) -> int:
        """Frames that are encoded together at most."""
        window, most = self.frames * self.window, self.longest * RATE // HOP
        return max(1, min(_PART, most) // window) * window

    @property
    def sizes(self) -> tuple[int, ...]:
        """Pieces of sounds that are compiled: whole windows."""
        most = self.part // self.frames * self.pieces
        return doubling(most, self.pieces * self.window, _LEAST)

    def parts(self, frames: np.ndarray, text: str, rows: Callable[[int], int]) -> PreparedMedia:
        """Cut the frames f32[F, bins] of a sound; rows: vectors of so many frames of a part."""
        each = [frames[start : start + self.part] for start in range(0, len(frames), self.part)]
        alone = len(frames) < self.frames
        counted = [(one, rows(len(one))) for one in each]
        first, *after = (self._prepared(one, count, text, alone) for one, count in counted if count)
        return first._replace(after=tuple(after))

    def _prepared(self, frames: np.ndarray, rows: int, text: str, alone: bool) -> PreparedMedia:
        count = -(-len(frames) // self.frames)
        whole = np.pad(frames, ((0, count * self.frames - len(frames)), (0, 0)))
        filled = whole.reshape(count, self.frames, -1)
        filled = np.pad(filled, ((0, 0), (0, self.pieces - self.frames), (0, 0)))
        kinds = np.zeros((count, self.pieces), np.int32)
        kinds[:, : self.frames] = (np.arange(count * self.frames) < len(frames)).reshape(count, -1)
        kinds *= ALONE if alone else 1
        pieces = filled.reshape(-1, filled.shape[-1])
        return PreparedMedia(pieces, kinds.reshape(-1, 1), None, rows, text * rows)


ALONE = 2  # a frame of a sound shorter than a chunk; 1: of another sound; 0: of none


class HeardChunks(NamedTuple):
    """The chunks of a batch of sounds."""

    frames: jax.Array  # f32[N, T, bins]
    there: jax.Array  # i32[N]: frames of the sound
    alone: jax.Array  # i32[N]: frames that convolutions see; behind them is nothing, not silence


def _chunks_of(chunks: Chunks, pieces: jax.Array, places: jax.Array) -> HeardChunks:
    kinds = places.reshape(-1, chunks.pieces)
    there = (kinds > 0).sum(1)
    frames = pieces.reshape(-1, chunks.pieces, pieces.shape[-1])[:, : chunks.frames]
    return HeardChunks(frames, there, jnp.where(kinds[:, 0] == ALONE, there, chunks.frames))


def _placed(x: jax.Array) -> jax.Array:
    """f32[N, T, D] plus the place of each vector in its chunk: sines, then cosines."""
    _, count, size = x.shape
    step = np.float32(-math.log(_BASE) / (size // 2 - 1))
    inverse = np.exp(step * np.arange(size // 2, dtype=np.float32))
    angles = np.arange(count, dtype=np.float32)[:, None] * inverse[None]
    return x + jnp.asarray(np.concatenate([np.sin(angles), np.cos(angles)], axis=1))[None]


class PairEncoder(nnx.Module):
    """A MediaEncoder of Qwen2.5-Omni: frames f32[S, P, bins], whose places say what they are.

    Two frames become a vector, chunks see themselves, and neighbours are averaged.
    """

    def __init__(
        self, config: AudioTowerConfig, chunks: Chunks, embed: int, form: WeightForm
    ) -> None:
        self.chunks = chunks
        self.first = FrameConvolution(config.embed, config.bins, f"{_TOWER}.conv1", form)
        self.second = FrameConvolution(config.embed, config.embed, f"{_TOWER}.conv2", form)
        names = (f"{_TOWER}.layers.{at}" for at in range(config.layers))
        self.layers = nnx.List([audio_layer(config, name, form) for name in names])
        self.norm = layer_norm(config.embed, f"{_TOWER}.ln_post")
        self.projection = _projection(embed, config.embed, "proj", form)

    def __call__(self, pieces: jax.Array, places: jax.Array, lengths: jax.Array) -> jax.Array:
        heard = _chunks_of(self.chunks, pieces, places)
        x = _placed(self.second(before(self.first(heard.frames, 1), heard.there), 2))
        x, seen = x.reshape(-1, x.shape[-1]), jnp.maximum(1, (heard.there + 1) // 2)
        for layer in self.layers:
            x = run_layer(layer, x, seen)
        x = self.projection(self.norm(x.reshape(-1, 2, x.shape[-1]).mean(1)))
        return x.reshape(len(pieces), -1, x.shape[-1])


def _projection(outs: int, ins: int, name: str, form: WeightForm) -> Linear:
    kernel, bias = dense(f"{_TOWER}.{name}")
    return Linear(outs, ins, ("embed", None), kernel, form=form, bias=bias)


_OMNI2 = TowerNames(
    "qwen2_5_omni_audio_encoder",
    "d_model",
    "encoder_attention_heads",
    "encoder_ffn_dim",
    "encoder_layers",
    _HARMLESS,
    ("n_window", "output_dim"),
)
_LONGEST_S = 30  # seconds that transformers' feature extractor takes if its file does not say it
_OWN = {"n_window": 100, "output_dim": 3584}


def omni2_sounds(keys: ConfigKeys, text: str, embed: int) -> MediaRecipe | None:
    """Return the recipe of Qwen2.5-Omni's audio encoder; None: the checkpoint has none.

    text: of the token that stands for a vector. embed: of the language model. Raises
    CheckpointError.
    """
    if keys.get(AUDIO) is None:
        return None
    tower, own = _tower(keys, _OMNI2, _OWN)
    half = own.whole("n_window")
    if half % 2:
        raise CheckpointError(
            f"audio_config has n_window = {half}: an even number is supported, because two "
            "neighbours of a chunk become one vector"
        )
    _check_width(own, embed)
    settings = sound_settings(keys)
    check_spectrogram(settings, tower.bins)
    longest = _seconds(settings.get("chunk_length", _LONGEST_S))
    chunks = Chunks(frames=2 * half, vectors=half // 2, each=4, longest=longest)

    def prepare(samples: np.ndarray) -> PreparedMedia:
        frames = -(-len(samples) // HOP)
        check_length(len(samples), longest, 2 * HOP + 1)
        # The silence behind a sound fills its last frame, as far as the extractor goes.
        most = longest * RATE
        filled = min(most, -(-(len(samples) + _FRAME) // HOP) * HOP)
        made = spectrogram(np.pad(samples, (0, filled - len(samples))), tower.bins)
        return chunks.parts(made[:frames], text, lambda count: (count + 1) // 4)

    return MediaRecipe(
        build=lambda form: PairEncoder(tower, chunks, embed, form),
        prepare=prepare,
        unused=(f"{_TOWER}.audio_bos_eos_token.",),
        **_recipe(keys, chunks, tower, text, embed),
    )


def _recipe(
    keys: ConfigKeys, chunks: Chunks, tower: AudioTowerConfig, text: str, embed: int
) -> dict[str, Any]:
    """Return what the recipes of both have in common."""
    return {
        "kind": "audio",
        "form": None,
        "placeholder": text,
        "token": keys.whole("audio_token_id", least=0),
        "piece": tower.bins,
        "columns": 1,
        "per_row": chunks.each,
        "width": embed,
        "pieces": chunks.sizes,
        "seconds": chunks.longest,
        "counted": f"for each {chunks.part * HOP / RATE:g} s",
    }


def _tower(
    keys: ConfigKeys, names: TowerNames, own: Mapping[str, Any]
) -> tuple[AudioTowerConfig, ConfigKeys]:
    """Return the sizes of the tower, and its own keys. Raises CheckpointError."""
    given = keys.get(AUDIO)
    if not isinstance(given, Mapping):
        raise CheckpointError(f"config.json has audio_config = {given!r}; it must be an object")
    config = cast("Mapping[str, Any]", given)
    tower = AudioTowerConfig.from_hf(config, names)
    if tower.embed % 2 or tower.embed < _LEAST_SIZE:
        raise CheckpointError(
            f"audio_config has d_model = {tower.embed}: an even number from {_LEAST_SIZE} is "
            "supported, half of which tell a vector's place by sines and half by cosines"
        )
    return tower, ConfigKeys(
        config, KnownKeys(names.kind, names.own, dict.fromkeys(config, anything)), own
    )


def _check_width(own: ConfigKeys, embed: int) -> None:
    if own.whole("output_dim") != embed:
        raise CheckpointError(
            f"audio_config makes vectors of {own.whole('output_dim')} numbers; those of the "
            f"language model have {embed}"
        )


def _seconds(given: object) -> int:
    if type(given) is not int or not 1 <= given <= _MOST_S:
        raise CheckpointError(
            f"preprocessor_config.json has chunk_length = {given!r}: give whole seconds from 1 to "
            f"{_MOST_S}"
        )
    return given


_MOST_S = 3600


def check_length(samples: int, longest: int, least: int) -> None:
    """Raise InvalidRequest for a sound that is too long or too short; least: samples."""
    if samples > longest * RATE:
        raise InvalidRequest(
            f"the sound is too long ({samples / RATE:,.1f} s): this model takes at most "
            f"{longest} s of each; send it in parts"
        )
    if samples < least:
        raise InvalidRequest(
            f"the sound is too short: this model takes at least {1000 * least / RATE:g} ms"
        )


class PlaneConvolution(nnx.Module):
    """Halves a spectrogram's bins and frames."""

    def __init__(self, outputs: int, inputs: int, name: str, form: WeightForm) -> None:
        kernel, bias = dense(name)
        shape = (outputs, inputs, 3, 3)
        self.kernel = weight(shape, (None,) * 4, kernel, dtype=form.dtype, spread=0.02)
        self.bias = weight((outputs,), (None,), bias, dtype=jnp.float32, spread=0.0)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps f32[N, T, bins, in] to f32[N, T / 2, bins / 2, out], both rounded up."""
        kernel = self.kernel.get_value()
        made = jax.lax.conv_general_dilated(
            x.astype(kernel.dtype),
            kernel,
            (2, 2),
            ((1, 1), (1, 1)),
            dimension_numbers=("NWHC", "OIHW", "NWHC"),
            precision=jax.lax.Precision.HIGHEST if kernel.dtype == jnp.float32 else None,
            preferred_element_type=jnp.float32,
        )
        return jax.nn.gelu(made + self.bias.get_value()[None, None, None], approximate=False)


def _halved(number: Any, times: int = 1) -> Any:
    """Return a number halved so often and rounded up each time."""
    for _ in range(times):
        number = (number + 1) // 2
    return number


class EighthEncoder(nnx.Module):
    """A MediaEncoder of Qwen3-Omni: frames f32[S, P, bins], whose places say what they are.

    Eight frames become a vector, and those of some chunks see each other.
    """

    def __init__(
        self, config: AudioTowerConfig, inner: int, chunks: Chunks, embed: int, form: WeightForm
    ) -> None:
        """inner: numbers of each place of a plane between convolutions."""
        self.chunks, size = chunks, config.embed
        self.convolutions = nnx.List(
            [
                PlaneConvolution(inner, inner if at else 1, f"{_TOWER}.conv2d{at + 1}", form)
                for at in range(_HALVINGS)
            ]
        )
        width = inner * _halved(config.bins, _HALVINGS)
        kernel, _ = dense(f"{_TOWER}.conv_out")
        self.inwards = Linear(size, width, ("embed", None), kernel, form=form)
        names = (f"{_TOWER}.layers.{at}" for at in range(config.layers))
        self.layers = nnx.List([_biased_layer(config, name, form) for name in names])
        self.norm = layer_norm(size, f"{_TOWER}.ln_post")
        self.first = _projection(size, size, "proj1", form)
        self.second = _projection(embed, size, "proj2", form)
        self.activation = config.activation

    def __call__(self, pieces: jax.Array, places: jax.Array, lengths: jax.Array) -> jax.Array:
        heard = _chunks_of(self.chunks, pieces, places)
        x, ends = heard.frames[..., None], heard.alone
        for convolution in self.convolutions:
            ends = _halved(ends)
            x = before(convolution(x), ends)
        chunks, count, bins, inner = x.shape
        x = x.swapaxes(2, 3).reshape(chunks * count, inner * bins)
        x = _placed(self.inwards(x).reshape(chunks, count, -1))
        seen = _halved(heard.there, _HALVINGS).reshape(-1, self.chunks.window).sum(1)
        x, seen = x.reshape(chunks * count, -1), jnp.maximum(1, seen)
        for layer in self.layers:
            x = run_layer(layer, x, seen)
        x = self.second(self.activation(self.first(self.norm(x))))
        return x.reshape(len(pieces), -1, x.shape[-1])


def _biased_layer(config: AudioTowerConfig, prefix: str, form: WeightForm) -> TowerLayer:
    (q, of_q), (k, of_k), (v, of_v), (out, out_bias) = (
        dense(f"{prefix}.self_attn.{part}_proj") for part in ("q", "k", "v", "out")
    )
    sources = AttentionSources(q=q, k=k, v=v, out=out, biases=(of_q, of_k, of_v), out_bias=out_bias)
    attention = TowerAttention(config.embed, config.heads, sources, form)
    return audio_layer(config, prefix, form, attention)


_HALVINGS = 3  # of the frames, by as many convolutions
_FRAMES3 = 100  # of a chunk: the reference counts its vectors, whatever n_window is
_LONGEST3_S = 40 * 60  # seconds of a sound, which Qwen3-Omni's makers give
_OMNI3 = TowerNames(
    "qwen3_omni_moe_audio_encoder",
    "d_model",
    "encoder_attention_heads",
    "encoder_ffn_dim",
    "encoder_layers",
    (*_HARMLESS, "conv_chunksize"),
    ("downsample_hidden_size", "n_window", "n_window_infer", "output_dim"),
)
_OWN3 = {"downsample_hidden_size": 480, "n_window": 50, "n_window_infer": 800, "output_dim": 3584}


def omni3_sounds(keys: ConfigKeys, text: str, embed: int) -> MediaRecipe | None:
    """Return the recipe of Qwen3-Omni's audio encoder; None: the checkpoint has none.

    A sound is computed as if it were sent alone: in transformers one that is shorter than a chunk
    differs beside others. text, embed: as of `omni2_sounds`. Raises CheckpointError.
    """
    if keys.get(AUDIO) is None:
        return None
    tower, own = _tower(keys, _OMNI3, _OWN3)
    own.only("n_window", _FRAMES3 // 2)
    window, rest = divmod(own.whole("n_window_infer"), _FRAMES3)
    if rest:
        raise CheckpointError(
            f"audio_config has n_window_infer = {own.whole('n_window_infer')}: a multiple of the "
            f"{_FRAMES3} frames of a chunk is supported"
        )
    _check_width(own, embed)
    vectors, inner = _halved(_FRAMES3, _HALVINGS), own.whole("downsample_hidden_size")
    chunks = Chunks(
        frames=_FRAMES3,
        vectors=vectors,
        each=2**_HALVINGS,
        window=window,
        longest=_LONGEST3_S,
    )
    check_spectrogram(sound_settings(keys), tower.bins)

    def rows(count: int) -> int:
        whole, left = divmod(count, _FRAMES3)
        return whole * vectors + _halved(left, _HALVINGS)

    def prepare(samples: np.ndarray) -> PreparedMedia:
        check_length(len(samples), _LONGEST3_S, _FRAME)
        return chunks.parts(spectrogram(samples, tower.bins), text, rows)

    return MediaRecipe(
        build=lambda form: EighthEncoder(tower, inner, chunks, embed, form),
        prepare=prepare,
        **_recipe(keys, chunks, tower, text, embed),
    )
