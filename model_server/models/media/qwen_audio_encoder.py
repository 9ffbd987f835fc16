"""Qwen2-Audio's audio input: Whisper's encoder, averages of pairs, a norm and a projection.

Source: Chu et al. 2024 (arXiv:2407.10759); names and config keys are those of Hugging Face's
`Qwen2AudioForConditionalGeneration`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_server.checkpoints.media_part import AUDIO, PREPROCESSOR
from model_server.models.audio.whisper import convolved
from model_server.models.audio.whisper_weights import LinearArrays
from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import KnownKeys, ignored
from model_server.models.layers.layers import (
    Activation,
    Branches,
    LayerNorm,
    Linear,
    activation_of,
    run_layer,
)
from model_server.models.media.media_recipe import MediaRecipe, PreparedMedia
from model_server.models.media.sizes import doubling
from model_server.models.media.tower_layer import (
    TowerAttention,
    TowerLayer,
    dense,
    heads_axis,
    plain_ffw,
)
from model_server.models.weights.weight import WeightForm, weight
from model_server.sharing.audio.process import HOP, RATE
from model_server.sharing.audio.spectrogram import spectrogram
from sax.errors import CheckpointError, InvalidRequest

# The encoder of Whisper beside a language model: spectrograms in, a vector for 20 ms each.
#
# Sources: Radford et al. 2022 (arXiv:2212.04356), Chu et al. 2024 (arXiv:2407.10759); names and
# config keys are those of Hugging Face's `Qwen2AudioEncoder`.

_TOWER_KEYS = KnownKeys(
    "qwen2_audio_encoder",
    (
        "activation_function",
        "d_model",
        "encoder_attention_heads",
        "encoder_ffn_dim",
        "encoder_layers",
        "max_source_positions",
        "num_mel_bins",
    ),
    {
        # Training; the reference reads the scale and does not apply it; the last repeats a number.
        **ignored("activation_dropout", "dropout", "encoder_layerdrop", "init_std"),
        **ignored("scale_embedding", "num_hidden_layers"),
    },
)
_DEFAULTS = {
    "activation_function": "gelu",
    "d_model": 1280,
    "encoder_attention_heads": 20,
    "encoder_ffn_dim": 5120,
    "encoder_layers": 32,
    "max_source_positions": 1500,
    "num_mel_bins": 128,
}
_EPSILON = 1e-5  # of every norm
_WIDTH = 3  # frames of a convolution


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioTowerConfig:
    bins: int  # of the spectrogram
    embed: int
    heads: int
    ffw: int
    layers: int
    positions: int  # of 20 ms each
    activation: Activation

    @property
    def frames(self) -> int:
        """Frames of 10 ms of the longest sound."""
        return 2 * self.positions

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> AudioTowerConfig:
        """Parse `audio_config`. Raises CheckpointError for unsupported settings."""
        keys = ConfigKeys(config, _TOWER_KEYS, _DEFAULTS)
        heads, embed = keys.whole("encoder_attention_heads"), keys.whole("d_model")
        if embed % heads:
            raise CheckpointError(
                f"audio_config has d_model = {embed} and {heads} attention heads; give a number of "
                "heads that divides it"
            )
        return cls(
            bins=keys.whole("num_mel_bins"),
            embed=embed,
            heads=heads,
            ffw=keys.whole("encoder_ffn_dim"),
            layers=keys.whole("encoder_layers"),
            positions=keys.whole("max_source_positions", least=2),
            activation=activation_of(keys.get("activation_function")),
        )


def layer_norm(size: int, name: str) -> LayerNorm:
    return LayerNorm(size, *dense(name), epsilon=_EPSILON)


class AudioAttention(TowerAttention):
    """Keys have no bias, so they are projected alone."""

    def __init__(self, config: AudioTowerConfig, prefix: str, form: WeightForm) -> None:
        size, self.heads = config.embed, config.heads
        axis = heads_axis(config.heads, form)
        parts = [dense(f"{prefix}.{part}_proj") for part in "qv"]
        self.qv = Branches(
            [size] * 2,
            size,
            [(axis, "embed")] * 2,
            [kernel for kernel, _ in parts],
            form=form,
            biases=[bias for _, bias in parts],
        )
        self.k = Linear(size, size, (axis, "embed"), (f"{prefix}.k_proj.weight",), form=form)
        kernel, bias = dense(f"{prefix}.out_proj")
        self.out = Linear(size, size, ("embed", axis), kernel, form=form, bias=bias)

    def branches(self, x: jax.Array) -> Sequence[jax.Array]:
        queries, values = self.qv(x)
        return queries, self.k(x), values


def _layer(config: AudioTowerConfig, prefix: str, form: WeightForm) -> TowerLayer:
    up, down = f"{prefix}.fc1", f"{prefix}.fc2"
    return TowerLayer(
        layer_norm(config.embed, f"{prefix}.self_attn_layer_norm"),
        AudioAttention(config, f"{prefix}.self_attn", form),
        layer_norm(config.embed, f"{prefix}.final_layer_norm"),
        plain_ffw(config.embed, config.ffw, up, down, config.activation, form),
    )


class _FrameConvolution(nnx.Module):
    def __init__(self, outputs: int, inputs: int, name: str, form: WeightForm) -> None:
        kernel, bias = dense(name)
        shape = (outputs, inputs, _WIDTH)
        self.kernel = weight(shape, (None,) * 3, kernel, dtype=form.dtype, spread=0.02)
        self.bias = weight((outputs,), (None,), bias, dtype=jnp.float32, spread=0.0)

    def __call__(self, x: jax.Array, stride: int) -> jax.Array:
        """Maps f32[S, W, in] to f32[S, W / stride, out]."""
        arrays = LinearArrays(self.kernel.get_value(), self.bias.get_value())
        # Whatever the layers' own activation is.
        return jax.nn.gelu(convolved(x, arrays, stride), approximate=False)


class AudioTower(nnx.Module):
    """Maps frames of sounds to a vector for two each."""

    def __init__(self, config: AudioTowerConfig, prefix: str, form: WeightForm) -> None:
        self.first = _FrameConvolution(config.embed, config.bins, f"{prefix}.conv1", form)
        self.second = _FrameConvolution(config.embed, config.embed, f"{prefix}.conv2", form)
        self.positions = weight(
            (config.positions, config.embed),
            (None, "embed"),
            (f"{prefix}.embed_positions.weight",),
            dtype=jnp.float32,
            spread=0.02,
        )
        layers = (f"{prefix}.layers.{index}" for index in range(config.layers))
        self.layers = nnx.List([_layer(config, each, form) for each in layers])

    def __call__(self, frames: jax.Array, lengths: jax.Array) -> jax.Array:
        """Maps f32[S, W, bins] to f32[S, W / 2, D], without the last norm.

        lengths: i32[S], of the result: what is behind them is not seen.
        """
        x = self.second(self.first(frames, 1), 2)
        sounds, count, size = x.shape
        x = (x + self.positions[...][:count][None]).reshape(-1, size)
        for layer in self.layers:
            x = run_layer(layer, x, lengths)
        return x.reshape(sounds, count, size)


TOKEN = ("audio_token_id", "audio_token_index")
KEYS = (AUDIO, PREPROCESSOR, *TOKEN)
_SOUND_TOKEN = 151646
_SOFT, _TOWER, _PROJECTOR = "<|AUDIO|>", "audio_tower", "multi_modal_projector.linear"
_PER_ROW = 4  # frames: the second convolution takes every other one, and pairs are averaged
_BESIDE = 2  # frames behind a sound that its last vector is computed from
_LEAST = 500  # frames of the shortest compiled sound


class SoundEncoder(nnx.Module):
    """A MediaEncoder. A piece is a frame; its place is 1 if it is of the sound, and else 0."""

    def __init__(self, config: AudioTowerConfig, embed: int, form: WeightForm) -> None:
        self.tower = AudioTower(config, _TOWER, form)
        self.norm = layer_norm(config.embed, f"{_TOWER}.layer_norm")
        self.projection = Linear(
            embed,
            config.embed,
            ("embed", None),
            (f"{_PROJECTOR}.weight",),
            form=form,
            bias=(f"{_PROJECTOR}.bias",),
        )

    def __call__(self, pieces: jax.Array, places: jax.Array, lengths: jax.Array) -> jax.Array:
        heard = self.tower(pieces, jnp.maximum(1, (places[:, :, 0].sum(1) + 1) // 2))
        sounds, count, size = heard.shape
        pairs = heard[:, : count // 2 * 2].reshape(-1, 2, size).mean(1)
        return self.projection(self.norm(pairs)).reshape(sounds, count // 2, -1)


def qwen2_audio_media(keys: ConfigKeys, embed: int) -> MediaRecipe | None:
    """Return the recipe of the audio encoder; None: the checkpoint has none.

    embed: of the language model. Raises CheckpointError.
    """
    given = keys.get(AUDIO)
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise CheckpointError(f"config.json has audio_config = {given!r}; it must be an object")
    tower = AudioTowerConfig.from_hf(cast("Mapping[str, Any]", given))
    _check_processor(keys.get(PREPROCESSOR, {}), tower)
    token = next((key for key in TOKEN if keys.get(key) is not None), TOKEN[0])
    return MediaRecipe(
        kind="audio",
        build=lambda form: SoundEncoder(tower, embed, form),
        form=None,
        prepare=lambda samples: prepared(tower, samples),
        placeholder=_SOFT,
        token=keys.whole(token, _SOUND_TOKEN, least=0),
        piece=tower.bins,
        columns=1,
        per_row=_PER_ROW,
        width=embed,
        pieces=doubling(tower.frames, _PER_ROW, _LEAST),
        seconds=-(-tower.frames * HOP // RATE),
    )


def prepared(tower: AudioTowerConfig, samples: np.ndarray) -> PreparedMedia:
    """Return the frames of samples f32[n] at 16 kHz. Raises InvalidRequest for too many or few."""
    most, frames = tower.frames * HOP, -(-len(samples) // HOP)
    rows = (frames + 1) // _PER_ROW
    if len(samples) > most:
        raise InvalidRequest(
            f"the sound is too long ({len(samples) / RATE:,.1f} s): this model takes at most "
            f"{most / RATE:g} s of each; send it in parts"
        )
    if not rows:
        raise InvalidRequest("the sound is too short: this model takes at least 30 ms")
    made = spectrogram(np.pad(samples, (0, most - len(samples))), tower.bins)
    pieces = made[: frames + _BESIDE]
    places = (np.arange(len(pieces)) < frames).astype(np.int32)[:, None]
    return PreparedMedia(pieces, places, (rows, 1, 1), rows, _SOFT * rows)


def _check_processor(given: Mapping[str, Any], tower: AudioTowerConfig) -> None:
    """Raise CheckpointError for a spectrogram of another kind."""
    wanted: dict[str, Any] = {
        "chunk_length": tower.frames * HOP // RATE,
        "dither": 0.0,
        "do_normalize": False,
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": tower.bins,
        "hop_length": HOP,
        "n_fft": 400,
        "sampling_rate": RATE,
    }
    for key, value in wanted.items():
        if given.get(key, value) != value:
            raise CheckpointError(
                f"preprocessor_config.json has {key} = {given[key]!r}; models with audio input "
                f"are served with {value!r}"
            )
