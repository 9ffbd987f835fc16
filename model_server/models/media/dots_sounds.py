"""Dots 3's sounds: a minute at a time, in which a vector for 80 ms sees all others.

Convolutions shorten a spectrogram by eight; layers with gated feed-forwards rotate the first half
of each head by the vectors' places.
Names and config keys are those of Hugging Face's `Dots3NoteForConditionalGeneration`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_server.checkpoints.media_part import AUDIO
from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import KnownKeys, ignored, one_of
from model_server.models.layers.activations import activation_of
from model_server.models.layers.feed_forward import GatedFeedForward
from model_server.models.layers.layers import LayerNorm, Linear, RmsNorm, run_layer
from model_server.models.layers.rope import Rotary, rope_frequencies
from model_server.models.media.media_recipe import MediaRecipe, PreparedMedia, doubling
from model_server.models.media.qwen.sounds import PlaneConvolution, check_length
from model_server.models.media.tower_layer import TowerLayer, before, dense
from model_server.models.media.whisper_encoders import (
    AudioAttention,
    AudioTowerConfig,
    check_spectrogram,
    sound_settings,
)
from model_server.models.weights.source import Tensor, cut
from model_server.models.weights.weight import WeightForm
from model_server.sharing.audio.process import HOP, RATE
from model_server.sharing.audio.spectrogram import FRAME, spectrogram
from sax.errors import CheckpointError

_TOWER = "audio_encoder.dots_encoder.speech_encoder"
_ADAPTER = "audio_encoder.audio_adapter.proj"
_HALVINGS = 3
_EACH = 2**_HALVINGS  # frames of a vector
_CHUNK_S = 60  # seconds that are heard together
_LONGEST_S = 40 * 60  # seconds of a sound, as of other models that hear part after part
_LEAST = 500  # frames of the shortest compiled sound
_THETA, _ROTATED = 10_000.0, 0.5  # of the rotation, and the share of a head that it turns
_EPSILON, _ADAPTER_EPSILON = 1e-6, 1e-5
_TOKEN, _TEXT = 151720, "<|audio_comp_pad|>"
# What published files call these keys, in a dictionary of their own
_NAMES = {
    "d_model": "hidden_size",
    "encoder_attention_heads": "num_attention_heads",
    "encoder_ffn_dim": "intermediate_size",
    "encoder_layers": "num_hidden_layers",
    "max_source_positions": "max_position_embeddings",
    "num_mel_bins": "feature_size",
}
_ADAPTERS = {
    "whisper_adapter_in_dim": "adapter_input_size",
    "adapter_output_size": "adapter_out_dim",
    "whisper_adapter_out_dim": "adapter_out_dim",
}
_SIZES = ("hidden_size", "num_attention_heads", "intermediate_size", "num_hidden_layers")
_KEYS = KnownKeys(
    "dots3_note_audio_encoder",
    (*_SIZES, "adapter_input_size", "adapter_out_dim", "downsample_hidden_size", "feature_size")
    + ("hidden_act", "rope_parameters"),
    {
        **ignored("attention_dropout", "dropout", "head_dim", "initializer_range"),
        **ignored("max_position_embeddings", "num_key_value_heads", "conv_output_size"),
        **ignored("samples_per_token"),
        "attention_bias": one_of(True),
        "hop_length": one_of(HOP),
        "partial_rotary_factor": one_of(_ROTATED),
        "sampling_rate": one_of(RATE),
    },
)
_DEFAULTS = {
    "hidden_size": 1280,
    "num_attention_heads": 20,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "adapter_input_size": 1280,
    "adapter_out_dim": 5120,
    "downsample_hidden_size": 480,
    "feature_size": 128,
    "hidden_act": "silu",
}


class DotsSoundEncoder(nnx.Module):
    """A MediaEncoder: frames f32[S, P, bins], whose places are 1 for those of the sound."""

    def __init__(
        self, config: AudioTowerConfig, inner: int, theta: float, embed: int, form: WeightForm
    ) -> None:
        """inner: numbers of each place of a plane between convolutions."""
        size = config.embed
        self.convolutions = nnx.List(
            [
                PlaneConvolution(inner, inner if at else 1, f"{_TOWER}.conv2d{at + 1}", form)
                for at in range(_HALVINGS)
            ]
        )
        width = inner * -(-config.bins // _EACH)
        kernel, _ = dense(f"{_TOWER}.conv_out")
        self.inwards = Linear(size, width, ("embed", None), kernel, form=form)
        names = (f"{_TOWER}.layers.{at}" for at in range(config.layers))
        self.layers = nnx.List([_layer(config, name, form) for name in names])
        self.norm = _norm(size, f"{_TOWER}.layer_norm")
        self.adapter_norm = LayerNorm(size, *dense(f"{_ADAPTER}.0"), epsilon=_ADAPTER_EPSILON)
        self.first = _projection(embed, size, f"{_ADAPTER}.1", form)
        self.second = _projection(embed, embed, f"{_ADAPTER}.3", form)
        self.rotated, self.theta = int(size // config.heads * _ROTATED), theta

    def __call__(self, pieces: jax.Array, places: jax.Array, lengths: jax.Array) -> jax.Array:
        ends = places[:, :, 0].sum(1)
        x = before(pieces, ends)[..., None]
        for convolution in self.convolutions:
            ends = (ends + 1) // 2
            x = before(convolution(x), ends)
        sounds, count, bins, inner = x.shape
        x = self.inwards(x.swapaxes(2, 3).reshape(sounds * count, inner * bins))
        rotation, seen = self._rotation(sounds, count), jnp.maximum(1, lengths // _EACH)
        for layer in self.layers:
            x = run_layer(layer, x, seen, rotation)
        x = self.first(self.adapter_norm(self.norm(x)))
        return self.second(jax.nn.gelu(x, approximate=False)).reshape(sounds, count, -1)

    def _rotation(self, sounds: int, count: int) -> Rotary:
        frequencies = jnp.asarray(rope_frequencies(self.rotated, self.theta))
        places = jnp.tile(jnp.arange(count, dtype=jnp.float32), sounds)
        angles = (places[:, None] * frequencies[None])[:, None]
        return Rotary(jnp.cos(angles), jnp.sin(angles), interleaved=False)


def _layer(config: AudioTowerConfig, name: str, form: WeightForm) -> TowerLayer:
    (kernel,), (bias,) = dense(f"{name}.fc1")
    down, down_bias = dense(f"{name}.fc2")
    halves = [(0, config.ffw), (config.ffw, 2 * config.ffw)]
    gate, up = (cut(Tensor(kernel), *half, of=2 * config.ffw) for half in halves)
    gate_bias, up_bias = (cut(Tensor(bias), *half, of=2 * config.ffw) for half in halves)
    return TowerLayer(
        _norm(config.embed, f"{name}.self_attn_layer_norm"),
        AudioAttention(config, f"{name}.self_attn", form),
        _norm(config.embed, f"{name}.final_layer_norm"),
        GatedFeedForward(
            config.embed,
            config.ffw,
            gate=gate,
            up=up,
            down=down,
            activation=config.activation,
            form=form,
            biases=(gate_bias, up_bias, down_bias),
        ),
    )


def _norm(size: int, name: str) -> RmsNorm:
    return RmsNorm(size, (f"{name}.weight",), epsilon=_EPSILON)


def _projection(outs: int, ins: int, name: str, form: WeightForm) -> Linear:
    kernel, bias = dense(name)
    return Linear(outs, ins, ("embed", None), kernel, form=form, bias=bias)


def dots_sounds(outer: ConfigKeys, embed: int) -> MediaRecipe | None:
    """Return the recipe of the audio encoder; None: the checkpoint has none.

    embed: of the language model. Raises CheckpointError.
    """
    if outer.get(AUDIO) is None:
        return None
    keys = _own(outer)
    config = AudioTowerConfig(
        bins=keys.whole("feature_size"),
        embed=keys.whole("hidden_size"),
        heads=keys.whole("num_attention_heads"),
        ffw=keys.whole("intermediate_size"),
        layers=keys.whole("num_hidden_layers"),
        positions=_CHUNK_S * RATE // (HOP * _EACH),
        activation=activation_of(keys.get("hidden_act")),
    )
    if config.embed % (4 * config.heads):
        raise CheckpointError(
            f"audio_config has hidden_size = {config.embed} in {config.heads} heads; each head "
            "must have a multiple of 4 numbers, half of which are rotated"
        )
    keys.only("adapter_input_size", config.embed)
    keys.only("adapter_out_dim", embed)
    settings = dict(sound_settings(outer))
    if settings.pop("feature_extractor_type", _EXTRACTOR) != _EXTRACTOR:
        raise CheckpointError(f"preprocessor_config.json has another extractor than {_EXTRACTOR}")
    seconds = settings.get("chunk_length", _CHUNK_S)
    if type(seconds) is not int or not 1 <= seconds <= _CHUNK_S:
        raise CheckpointError(
            f"preprocessor_config.json has chunk_length = {seconds!r}: give whole seconds from 1 "
            f"to {_CHUNK_S}"
        )
    check_spectrogram(settings, config.bins)
    inner, theta = keys.whole("downsample_hidden_size"), _theta(keys)
    return MediaRecipe(
        kind="audio",
        build=lambda form: DotsSoundEncoder(config, inner, theta, embed, form),
        form=None,
        prepare=lambda samples: _prepared(config.bins, samples, seconds * RATE),
        placeholder=_TEXT,
        token=outer.whole("audio_token_id", _TOKEN, least=0),
        piece=config.bins,
        columns=1,
        per_row=_EACH,
        width=embed,
        pieces=doubling(seconds * RATE // HOP, _EACH, _LEAST),
        seconds=_LONGEST_S,
        counted=f"for each {seconds} s",
    )


_EXTRACTOR = "Dots3NoteFeatureExtractor"


def _own(outer: ConfigKeys) -> ConfigKeys:
    """Return the tower's keys by the names that transformers writes. Raises CheckpointError."""
    given = outer.get(AUDIO)
    if not isinstance(given, Mapping):
        raise CheckpointError(f"config.json has audio_config = {given!r}; it must be an object")
    own = dict(cast("Mapping[str, Any]", given))
    inside = own.pop("whisper_config", None) or {}
    for older, key in _ADAPTERS.items():
        if older in own:
            own[key] = own.pop(older)
    own |= {key: inside[older] for older, key in _NAMES.items() if older in inside}
    return ConfigKeys(own, _KEYS, _DEFAULTS)


def _theta(keys: ConfigKeys) -> float:
    """Return the base of the rotation. Raises CheckpointError."""
    given: Any = keys.get("rope_parameters") or {}
    known = {"rope_type": "default", "partial_rotary_factor": _ROTATED}
    others = {key: value for key, value in given.items() if key != "rope_theta"}
    if any(others[key] != known.get(key) for key in others):
        raise CheckpointError(
            f"audio_config has rope_parameters = {given!r}; supported: a rope_theta, {known}"
        )
    return float(given.get("rope_theta", _THETA))


def _prepared(bins: int, samples: np.ndarray, most: int) -> PreparedMedia:
    """Cut samples f32[n] at 16 kHz into chunks of so many. Raises InvalidRequest."""
    check_length(len(samples), _LONGEST_S, 1)
    starts = range(0, len(samples), most)
    first, *after = (_chunk(bins, samples[start : start + most], most) for start in starts)
    return first._replace(after=tuple(after))


def _chunk(bins: int, samples: np.ndarray, most: int) -> PreparedMedia:
    """Silence follows up to the end of the chunk."""
    frames, rows = len(samples) // HOP, -(-len(samples) // (HOP * _EACH))
    filled = min(most, rows * HOP * _EACH + FRAME)
    made = spectrogram(np.pad(samples, (0, filled - len(samples))), bins)[:frames]
    made = np.pad(made, ((0, rows * _EACH - frames), (0, 0)))
    places = (np.arange(len(made)) < frames).astype(np.int32)[:, None]
    return PreparedMedia(made, places, None, rows, _TEXT * rows)
