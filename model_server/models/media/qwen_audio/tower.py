"""The encoder of Whisper beside a language model: spectrograms in, a vector for 20 ms each.

Sources: Radford et al. 2022 (arXiv:2212.04356), Chu et al. 2024 (arXiv:2407.10759); names and
config keys are those of Hugging Face's `Qwen2AudioEncoder`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.models.audio.whisper import convolved
from model_server.models.audio.whisper_weights import LinearArrays
from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import KnownKeys, ignored
from model_server.models.layers.feed_forward import FeedForward
from model_server.models.layers.layers import (
    Activation,
    Branches,
    LayerNorm,
    Linear,
    activation_of,
    run_layer,
)
from model_server.models.media.tower_attention import attend
from model_server.models.weights.weight import WeightForm, weight
from sax.errors import CheckpointError

KEYS = KnownKeys(
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
        keys = ConfigKeys(config, KEYS, _DEFAULTS)
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


def _dense(name: str) -> tuple[tuple[str], tuple[str]]:
    return (f"{name}.weight",), (f"{name}.bias",)


def layer_norm(size: int, name: str) -> LayerNorm:
    scale, bias = _dense(name)
    return LayerNorm(size, scale, bias, epsilon=_EPSILON)


class AudioAttention(nnx.Module):
    """Heads are divided over the devices of the model axis, if evenly; else each computes all."""

    def __init__(self, config: AudioTowerConfig, prefix: str, form: WeightForm) -> None:
        size, self.heads = config.embed, config.heads
        axis = "heads" if config.heads % form.layout.shards("heads") == 0 else None
        parts = [_dense(f"{prefix}.{part}_proj") for part in "qv"]
        self.qv = Branches(
            [size] * 2,
            size,
            [(axis, "embed")] * 2,
            [kernel for kernel, _ in parts],
            form=form,
            biases=[bias for _, bias in parts],
        )
        self.k = Linear(size, size, (axis, "embed"), (f"{prefix}.k_proj.weight",), form=form)
        kernel, bias = _dense(f"{prefix}.out_proj")
        self.out = Linear(size, size, ("embed", axis), kernel, form=form, bias=bias)

    def __call__(self, x: jax.Array, lengths: jax.Array) -> jax.Array:
        """Maps f32[S * T, D] to the same."""
        dtype, (queries, values) = self.out.kernel.get_value().dtype, self.qv(x)
        q, k, v = (
            part.reshape(lengths.shape[0], -1, self.heads, part.shape[-1] // self.heads)
            for part in (queries, self.k(x), values)
        )
        mixed = attend(q.astype(dtype), k.astype(dtype), v.astype(dtype), lengths)
        return self.out(mixed.reshape(x.shape))


class AudioLayer(nnx.Module):
    def __init__(self, config: AudioTowerConfig, prefix: str, form: WeightForm) -> None:
        up, up_bias = _dense(f"{prefix}.fc1")
        down, down_bias = _dense(f"{prefix}.fc2")
        self.before_attention = layer_norm(config.embed, f"{prefix}.self_attn_layer_norm")
        self.attention = AudioAttention(config, f"{prefix}.self_attn", form)
        self.before_ffw = layer_norm(config.embed, f"{prefix}.final_layer_norm")
        self.ffw = FeedForward(
            config.embed,
            config.ffw,
            up=up,
            down=down,
            activation=config.activation,
            form=form,
            biases=(up_bias, down_bias),
        )

    def __call__(self, x: jax.Array, lengths: jax.Array) -> jax.Array:
        x = x + self.attention(self.before_attention(x), lengths)
        return x + self.ffw(self.before_ffw(x))


class _FrameConvolution(nnx.Module):
    def __init__(self, outputs: int, inputs: int, name: str, form: WeightForm) -> None:
        kernel, bias = _dense(name)
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
        self.layers = nnx.List([AudioLayer(config, each, form) for each in layers])

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
