"""Phi-4-multimodal: Phi-4-mini beside a tower of images and a conformer, with an adapter for each.

Source: Abouelenin et al. 2025 (arXiv:2503.01743), Gulati et al. 2020 (arXiv:2005.08100); names and
config keys are those of Hugging Face's `Phi4MultimodalForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_server.checkpoints.media_part import ADAPTERS, AUDIO, FEATURES, PREPROCESSOR, VISION
from model_server.models.config_keys import ConfigKeys
from model_server.models.families import phi3
from model_server.models.families.around import around, with_own_adapters
from model_server.models.known_keys import KnownKeys, ignored
from model_server.models.layers.activations import Activation, activation_of
from model_server.models.layers.attention import AttentionSources
from model_server.models.layers.feed_forward import GatedFeedForward
from model_server.models.layers.layers import LayerNorm
from model_server.models.media.media_recipe import MediaRecipe, PreparedMedia, doubling, encoders
from model_server.models.media.phi4_images import files_apart, phi4_images
from model_server.models.media.projector import dense_layer
from model_server.models.media.tower_layer import (
    DepthwiseConvolution,
    PointwiseConvolution,
    TowerAttention,
    before,
    dense,
)
from model_server.models.recipe import Family, Recipe
from model_server.models.weights.source import Tensor, cut
from model_server.models.weights.weight import WeightForm, weight
from model_server.sharing.audio.process import RATE
from model_server.sharing.audio.spectrogram import FRAME, kaldi_spectrogram
from sax.errors import CheckpointError, InvalidRequest

_TOWER, _SOFT, _SOUND_TOKEN = "audio_tower", "<|audio|>", 200011
_CHUNK = 500  # vectors that see each other
_EACH = 8  # frames of a vector
_HALVINGS = 3
_LONGEST_S = 30 * 60  # of a sound, which its makers give
_LEAST = 504  # frames of the shortest compiled sound
_EPSILON = 1e-5  # of norms
_ALONE, _FIRST, _LATER = 1, 2, 3  # chunks: the whole sound, its first, one behind others
_SOUND_KEYS = KnownKeys(
    "phi4_multimodal_audio",
    (
        *("activation", "audio_token_id", "bias_max_distance", "bias_symmetric", "chunk_size"),
        *("conv_activation", "conv_glu_type", "depthwise_multiplier", "downsample_rate"),
        *("depthwise_separable_out_channel", "ext_pw_out_channel", "hidden_size", "input_size"),
        *("intermediate_size", "kernel_size", "nemo_activation", "nemo_conv_channels"),
        *("num_attention_heads", "num_blocks", "time_reduction"),
    ),
    # Of chunks that follow each other, of training, and what the reference computes and reads not.
    ignored("dropout_rate", "feature_layer", "left_chunk", "nemo_final_size"),
)
_SOUND_SIZES = {
    **{"activation": "swish", "bias_max_distance": 1000, "conv_activation": "swish"},
    **{"conv_glu_type": "swish", "hidden_size": 1024, "input_size": 80, "kernel_size": 3},
    **{"intermediate_size": 1536, "nemo_activation": "relu", "nemo_conv_channels": 1024},
    **{"num_attention_heads": 16, "num_blocks": 24},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundSizes:
    bins: int  # of the spectrogram
    embed: int
    ffw: int
    heads: int
    layers: int
    width: int  # of convolutions over vectors
    inner: int  # channels of those over frames
    distance: int  # up to which biases differ
    symmetric: bool  # they are equal for both directions
    activation: Activation
    gate: Activation  # of what a convolution lets through
    mixed: Activation  # behind it
    shortened: Activation  # behind those over frames

    @classmethod
    def from_hf(cls, keys: ConfigKeys) -> SoundSizes:
        """Parse `audio_config`. Raises CheckpointError for unsupported settings."""
        embed, heads = keys.whole("hidden_size"), keys.whole("num_attention_heads")
        keys.only("time_reduction", _EACH)
        keys.only("chunk_size", -1)
        keys.only("downsample_rate", 1)
        keys.only("depthwise_multiplier", 1)
        for key in ("depthwise_separable_out_channel", "ext_pw_out_channel"):
            if keys.whole(key, 1024) != embed:
                raise CheckpointError(
                    f"audio_config has {key} = {keys.whole(key, 1024)}; the phi4_multimodal family "
                    f"supports hidden_size, {embed}"
                )
        if embed % heads:
            raise CheckpointError(
                f"audio_config has hidden_size = {embed} and {heads} attention heads; give a "
                "number of heads that divides it"
            )
        return cls(
            bins=keys.whole("input_size"),
            embed=embed,
            ffw=keys.whole("intermediate_size"),
            heads=heads,
            layers=keys.whole("num_blocks"),
            width=keys.whole("kernel_size"),
            inner=keys.whole("nemo_conv_channels"),
            distance=keys.whole("bias_max_distance"),
            symmetric=keys.flag("bias_symmetric"),
            activation=activation_of(keys.get("activation")),
            gate=activation_of(keys.get("conv_glu_type")),
            mixed=activation_of(keys.get("conv_activation")),
            shortened=activation_of(keys.get("nemo_activation")),
        )


def _norm(size: int, name: str) -> LayerNorm:
    return LayerNorm(size, *dense(name), epsilon=_EPSILON)


class FrameHalving(nnx.Module):
    """A convolution that takes every other frame and bin; behind the first of them, by channels."""

    def __init__(self, sizes: SoundSizes, at: int, form: WeightForm) -> None:
        """at: its number, from 0."""
        inner, name = sizes.inner, f"{_TOWER}.encoder.embed.conv"
        kernel, bias = dense(f"{name}.{3 * at - 1 if at else 0}")
        self.kernel = weight((inner, 1, 3, 3), (None,) * 4, kernel, dtype=form.dtype, spread=0.02)
        self.bias = weight((inner,), (None,), bias, dtype=jnp.float32, spread=0.0)
        self.groups, self.activation = (inner if at else 1), sizes.shortened
        self.whole = nnx.data(None)
        if at:
            kernel, bias = dense(f"{name}.{3 * at}")
            shape = (inner, inner, 1, 1)
            self.whole = weight(shape, (None,) * 4, kernel, dtype=form.dtype, spread=0.02)
            self.offset = weight((inner,), (None,), bias, dtype=jnp.float32, spread=0.0)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps f32[S, F, bins, in] to f32[S, F / 2, bins / 2, C], both rounded up."""
        made = _convolved(x, self.kernel.get_value(), 2, self.groups)
        made += self.bias[...][None, None, None]
        if self.whole is not None:
            made = _convolved(made, self.whole.get_value(), 1, 1)
            made += self.offset[...][None, None, None]
        return self.activation(made)


def _convolved(x: jax.Array, kernel: jax.Array, stride: int, groups: int) -> jax.Array:
    edge = kernel.shape[-1] // 2
    return jax.lax.conv_general_dilated(
        x.astype(kernel.dtype),
        kernel,
        (stride, stride),
        ((edge, edge),) * 2,
        dimension_numbers=("NHWC", "OIHW", "NHWC"),
        feature_group_count=groups,
        precision=jax.lax.Precision.HIGHEST if kernel.dtype == jnp.float32 else None,
        preferred_element_type=jnp.float32,
    )


class BiasedAttention(TowerAttention):
    """Vectors of a chunk see each other; how far apart they are adds to their scores."""

    def mixed(self, q: jax.Array, k: jax.Array, v: jax.Array, seen: jax.Array) -> jax.Array:
        """seen: f32[S, H, P, P], added to the scores."""
        wide = {"preferred_element_type": jnp.float32}
        scores = jnp.einsum("sphq,srhq->shpr", q, k, **wide) * q.shape[-1] ** -0.5
        weights = jax.nn.softmax(scores + seen, axis=-1).astype(v.dtype)
        return jnp.einsum("shpr,srhq->sphq", weights, v, **wide)


class GatedConvolutions(nnx.Module):
    """Gates each vector, mixes it with those before it, and projects it."""

    def __init__(self, sizes: SoundSizes, name: str, form: WeightForm) -> None:
        size = sizes.embed
        self.norm = _norm(size, f"{name}.layer_norm")
        self.both = PointwiseConvolution(2 * size, size, f"{name}.glu.ext_pw_conv_1d", form)
        self.offsets = nnx.List(
            [
                weight(
                    (1, size, 1),
                    (None,) * 3,
                    (f"{name}.glu.b{n}",),
                    dtype=jnp.float32,
                    spread=0.0,
                )
                for n in (1, 2)
            ]
        )
        mixing = f"{name}.dw_sep_conv_1d"
        self.mixing = DepthwiseConvolution(
            size, sizes.width, sizes.width - 1, f"{mixing}.dw_conv", biased=True
        )
        self.mixed = PointwiseConvolution(size, size, f"{mixing}.pw_conv", form)
        self.out = PointwiseConvolution(size, size, f"{name}.ext_pw_conv_1d", form)
        self.gate, self.activation = sizes.gate, sizes.mixed

    def __call__(self, x: jax.Array, sounds: int) -> jax.Array:
        """Maps f32[S * P, D] to the same."""
        first, second = (each[...][:, :, 0] for each in self.offsets)
        passed, opening = jnp.split(self.both(self.norm(x)), 2, axis=-1)
        wide = (passed + first) * self.gate(opening + second)
        mixed = self.mixing(wide.reshape(sounds, -1, wide.shape[-1])).reshape(x.shape)
        return self.out(self.activation(self.mixed(mixed)))


class SoundLayer(nnx.Module):
    def __init__(self, sizes: SoundSizes, name: str, form: WeightForm) -> None:
        size = sizes.embed
        self.before_first, self.first = _gated(sizes, f"{name}.feed_forward_in", form)
        self.before_attention = _norm(size, f"{name}.layer_norm_att")
        (q, of_q), (k, of_k), (v, of_v), (out, out_bias) = (
            dense(f"{name}.self_attn.{part}_proj") for part in "qkvo"
        )
        biases = (of_q, of_k, of_v)
        sources = AttentionSources(q=q, k=k, v=v, out=out, biases=biases, out_bias=out_bias)
        self.attention = BiasedAttention(size, sizes.heads, sources, form)
        self.convolutions = GatedConvolutions(sizes, f"{name}.conv", form)
        self.before_last, self.last = _gated(sizes, f"{name}.feed_forward_out", form)
        self.norm = _norm(size, f"{name}.layer_norm")

    def __call__(self, x: jax.Array, seen: jax.Array) -> jax.Array:
        """Maps f32[S * P, D] to the same; seen: f32[S, H, P, P], added to scores."""
        x = x + 0.5 * self.first(self.before_first(x))
        x = x + self.attention(self.before_attention(x), seen)
        x = x + self.convolutions(x, len(seen))
        return self.norm(x + 0.5 * self.last(self.before_last(x)))


def _gated(sizes: SoundSizes, name: str, form: WeightForm) -> tuple[LayerNorm, GatedFeedForward]:
    """Return a norm and what follows it; gates are the second half of what is stored as one."""
    both, ffw = [Tensor(f"{name}.gate_up_proj.{part}") for part in ("weight", "bias")], sizes.ffw
    (up, up_bias), (gate, gate_bias) = (
        [cut(each, at, at + ffw, of=2 * ffw) for each in both] for at in (0, ffw)
    )
    down, down_bias = dense(f"{name}.down_proj")
    made = GatedFeedForward(
        sizes.embed,
        ffw,
        gate=gate,
        up=up,
        down=down,
        activation=sizes.activation,
        form=form,
        biases=(gate_bias, up_bias, down_bias),
    )
    return _norm(sizes.embed, f"{name}.layer_norm"), made


class SoundChunkEncoder(nnx.Module):
    """A MediaEncoder: frames f32[S, P, bins] of a chunk behind the last of the one before.

    Places are i32[S, P, 3]: what the chunk is of, its frames with those, 1 in prompts with images.
    """

    def __init__(self, sizes: SoundSizes, embed: int, form: WeightForm) -> None:
        self.sizes, tower = sizes, f"{_TOWER}.encoder"
        of_bins = f"{tower}.encoder_embedding.global"
        self.mean, self.scale = (
            weight((sizes.bins,), (None,), (f"{of_bins}_{part}",), dtype=jnp.float32)
            for part in ("mean", "invstd")
        )
        self.halvings = nnx.List([FrameHalving(sizes, at, form) for at in range(_HALVINGS)])
        left = -(-sizes.bins // _EACH)
        self.inwards = dense_layer(sizes.embed, sizes.inner * left, f"{tower}.embed.out", form)
        count = sizes.distance * (1 if sizes.symmetric else 2)
        self.distances = weight(
            (count, sizes.heads),
            (None, None),
            (f"{tower}.relative_attention_bias_layer.bias_values.weight",),
            dtype=jnp.float32,
            spread=0.02,
        )
        names = (f"{tower}.encoders.{at}" for at in range(sizes.layers))
        self.layers = nnx.List([SoundLayer(sizes, name, form) for name in names])
        kinds = ("speech", "vision_speech")
        self.ups, self.downs = (
            nnx.List(
                [
                    dense_layer(embed, inputs, f"{_TOWER}.{part}_proj_for_{kind}", form)
                    for kind in kinds
                ]
            )
            for part, inputs in (("up", sizes.embed), ("down", embed))
        )

    def __call__(self, pieces: jax.Array, places: jax.Array, lengths: jax.Array) -> jax.Array:
        kinds, frames, beside = (places[:, 0, at] for at in range(3))
        x, there = self._shortened(pieces, kinds, frames)
        sounds, count, size = x.shape
        # A chunk of several is filled up with zeros, which are seen.
        seen = self._seen(count, jnp.where(kinds > _ALONE, count, jnp.maximum(there, 1)))
        x = before(x, there).reshape(-1, size)
        for layer in self.layers:
            x = layer(x, seen)
        speech, vision = (
            down(jax.nn.gelu(up(x), approximate=False)).reshape(sounds, count, -1)
            for up, down in zip(self.ups, self.downs, strict=True)
        )
        made = jnp.where(beside[:, None, None] > 0, vision, speech)
        return jnp.pad(made, ((0, 0), (0, 1), (0, 0)))

    def _shortened(
        self, frames: jax.Array, kinds: jax.Array, lengths: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Return the vectors of a chunk f32[S, P / 8 - 1, D], and how many there are, i32[S]."""
        x = (frames - self.mean[...][None, None]) * self.scale[...][None, None]
        x, ends = x[..., None], lengths
        starts = jnp.where(kinds == _LATER, 0, _EACH)
        for halving in self.halvings:
            x = halving(_from(before(x, ends), starts))
            starts, ends = starts // 2, (ends + 1) // 2
        sounds, count, bins, inner = x.shape
        x = x.swapaxes(2, 3).reshape(-1, inner * bins)
        return self.inwards(x).reshape(sounds, count, -1)[:, 1:], ends - 1

    def _seen(self, count: int, lengths: jax.Array) -> jax.Array:
        """f32[S, H, P, P]: what is added to the scores of vectors, by their distance."""
        most, at = self.sizes.distance, np.arange(count)
        apart = np.clip(at[None] - at[:, None], -most, most - 1)
        rows = np.abs(apart) if self.sizes.symmetric else apart + most
        added = self.distances[...].at[rows].get(mode="clip").transpose(2, 0, 1)
        there = jnp.arange(count)[None] < lengths[:, None]
        return jnp.where(there[:, None, None], added[None], -1e30)


def _from(x: jax.Array, starts: jax.Array) -> jax.Array:
    """f32[N, T, ...] with zeros before place i32[N]."""
    there = jnp.arange(x.shape[1])[None] >= starts[:, None]
    return jnp.where(there.reshape(*there.shape, *(1,) * (x.ndim - 2)), x, 0.0)


def phi4_sounds(keys: ConfigKeys, embed: int) -> MediaRecipe | None:
    """Return the recipe of the audio encoder; None: the checkpoint has none.

    embed: of the language model. Raises CheckpointError.
    """
    given = keys.get(AUDIO)
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise CheckpointError(f"config.json has audio_config = {given!r}; it must be an object")
    own = ConfigKeys(given, _SOUND_KEYS, _SOUND_SIZES)
    sizes = SoundSizes.from_hf(own)
    _check_features(keys.get(FEATURES) or {}, sizes.bins)
    return MediaRecipe(
        kind="audio",
        build=lambda form: SoundChunkEncoder(sizes, embed, form),
        form=None,
        prepare=partial(_prepared, sizes.bins, 0),
        beside=partial(_prepared, sizes.bins, 1),
        placeholder=_SOFT,
        token=own.whole("audio_token_id", _SOUND_TOKEN, least=0),
        piece=sizes.bins,
        columns=3,
        per_row=_EACH,
        width=embed,
        pieces=doubling(_EACH * (_CHUNK + 1), _EACH, _LEAST),
        seconds=_LONGEST_S,
        counted=f"for each {_CHUNK * _EACH / 100:g} s",
    )


def _check_features(given: Mapping[str, Any], bins: int) -> None:
    """Raise CheckpointError for a spectrogram of another kind."""
    wanted = {
        **{"audio_compression_rate": _EACH, "audio_downsample_rate": 1, "audio_feat_stride": 1},
        **{"feature_size": bins, "hop_length": 160, "mel_max_frequency": 7690, "n_fft": 512},
        **{"mel_min_frequency": 0, "preemphasis": 0.97, "sampling_rate": RATE, "win_length": FRAME},
    }
    for key, value in wanted.items():
        if given.get(key, value) != value:
            raise CheckpointError(
                f"preprocessor_config.json has {key} = {given[key]!r}; this family is served with "
                f"{value!r}"
            )


def _prepared(bins: int, beside: int, samples: np.ndarray) -> PreparedMedia:
    """Return the chunks of samples f32[n] at 16 kHz, each behind the last frames before it.

    beside: 1 in prompts with images. Raises InvalidRequest for too many samples or too few.
    """
    if len(samples) > _LONGEST_S * RATE:
        raise InvalidRequest(
            f"the sound is too long ({len(samples) / RATE:,.1f} s): this model takes at most "
            f"{_LONGEST_S // 60} minutes of each; send it in parts"
        )
    if len(samples) < FRAME:
        raise InvalidRequest("the sound is too short: this model takes at least 25 ms")
    made, chunk = kaldi_spectrogram(samples, bins), _EACH * _CHUNK
    several = len(made) > chunk
    parts: list[PreparedMedia] = []
    for start in range(0, len(made), chunk):
        own = made[max(0, start - _EACH) : start + chunk]
        own = own if start else np.pad(own, ((_EACH, 0), (0, 0)))
        kind = _LATER if start else _FIRST if several else _ALONE
        rows = -(-len(own) // _EACH) - 1
        pieces = np.pad(own, ((0, _EACH + chunk - len(own) if several else 0), (0, 0)))
        places = np.tile(np.asarray([[kind, len(own), beside]], np.int32), (len(pieces), 1))
        parts.append(PreparedMedia(pieces, places, None, rows, _SOFT * rows))
    return parts[0]._replace(after=tuple(parts[1:]))


_KEYS = (ADAPTERS, AUDIO, FEATURES, PREPROCESSOR, VISION)
_FOLDERS = {"image": "vision-lora", "audio": "speech-lora"}
_SIZES = {
    **{"hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 131072},
    **{"num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8},
    "vocab_size": 200064,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    seen: list[MediaRecipe] = []

    def media(keys: ConfigKeys, embed: int) -> MediaRecipe | None:
        seen.extend(encoders(phi4_images(keys, embed), phi4_sounds(keys, embed)))
        return None

    texts = {"phi3": (phi3.configure, _SIZES)}
    given = {"text_model_type": "phi3", **files_apart(config)}
    recipe = around("phi4_multimodal", given, values, texts, _KEYS, media)
    adapters = given.get(ADAPTERS, {})
    return with_own_adapters(replace(recipe, media=tuple(seen)), adapters, _FOLDERS)


FAMILY = Family(
    "phi4_multimodal",
    ("phi4_multimodal",),
    "Phi-4-multimodal",
    configure,
    own_types_only=True,
)
