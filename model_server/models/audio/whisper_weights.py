"""The weights of Whisper, as checkpoints of `WhisperForConditionalGeneration` hold them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.models.audio.audio_recipe import HEAD
from model_server.models.audio.whisper_config import WhisperConfig
from model_server.models.weights.weight import weight

Tree = dict[str, Any]


class LinearArrays(NamedTuple):
    kernel: jax.Array  # [..., out, in]
    bias: jax.Array | None  # f32[..., out]


class Norm(NamedTuple):
    scale: jax.Array  # f32[..., D]
    bias: jax.Array  # f32[..., D]


class _Declaring(nnx.Module):
    """Declares matrices in the model's number format and vectors in float32."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype

    def matrix(self, name: str, *shape: int) -> nnx.Param:
        return weight(shape, (None,) * len(shape), (name,), dtype=self.dtype, spread=0.02)

    def vector(self, name: str, size: int) -> nnx.Param:
        return weight((size,), (None,), (name,), dtype=jnp.float32, spread=0.0)


class LinearWeights(_Declaring):
    def __init__(self, dtype: Any, name: str, outs: int, ins: int, *, biased: bool = True) -> None:
        super().__init__(dtype)
        self.kernel = self.matrix(f"{name}.weight", outs, ins)
        self.bias = self.vector(f"{name}.bias", outs) if biased else None

    def arrays(self) -> LinearArrays:
        bias = None if self.bias is None else self.bias.get_value()
        return LinearArrays(self.kernel.get_value(), bias)


class NormWeights(_Declaring):
    def __init__(self, name: str, size: int) -> None:
        super().__init__(jnp.float32)
        self.scale = self.vector(f"{name}.weight", size)
        self.bias = self.vector(f"{name}.bias", size)

    def arrays(self) -> Norm:
        return Norm(self.scale.get_value(), self.bias.get_value())


class AttentionWeights(nnx.Module):
    def __init__(self, dtype: Any, name: str, embed: int) -> None:
        self.q = LinearWeights(dtype, f"{name}.q_proj", embed, embed)
        self.k = LinearWeights(dtype, f"{name}.k_proj", embed, embed, biased=False)
        self.v = LinearWeights(dtype, f"{name}.v_proj", embed, embed)
        self.out = LinearWeights(dtype, f"{name}.out_proj", embed, embed)

    def arrays(self) -> Tree:
        parts = {"q": self.q, "k": self.k, "v": self.v, "out": self.out}
        return {key: each.arrays() for key, each in parts.items()}


class LayerWeights(nnx.Module):
    """A layer of the encoder, or of the decoder, which also attends to the encoder."""

    def __init__(self, dtype: Any, name: str, embed: int, ffw: int, *, crosses: bool) -> None:
        self.norm = NormWeights(f"{name}.self_attn_layer_norm", embed)
        self.attention = AttentionWeights(dtype, f"{name}.self_attn", embed)
        self.cross_norm = NormWeights(f"{name}.encoder_attn_layer_norm", embed) if crosses else None
        self.cross = AttentionWeights(dtype, f"{name}.encoder_attn", embed) if crosses else None
        self.ffw_norm = NormWeights(f"{name}.final_layer_norm", embed)
        self.up = LinearWeights(dtype, f"{name}.fc1", ffw, embed)
        self.down = LinearWeights(dtype, f"{name}.fc2", embed, ffw)

    def arrays(self) -> Tree:
        parts = {
            "norm": self.norm,
            "attention": self.attention,
            "cross_norm": self.cross_norm,
            "cross": self.cross,
            "ffw_norm": self.ffw_norm,
            "up": self.up,
            "down": self.down,
        }
        return {key: each.arrays() for key, each in parts.items() if each is not None}


class Whisper(_Declaring):
    """The weights; `whisper` computes with what `prepared` makes of them."""

    def __init__(self, config: WhisperConfig, dtype: Any) -> None:
        super().__init__(dtype)
        embed, encoder, decoder = config.embed, "model.encoder", "model.decoder"
        self.convolution_1 = self.matrix(f"{encoder}.conv1.weight", embed, config.bins, 3)
        self.convolution_1_bias = self.vector(f"{encoder}.conv1.bias", embed)
        self.convolution_2 = self.matrix(f"{encoder}.conv2.weight", embed, embed, 3)
        self.convolution_2_bias = self.vector(f"{encoder}.conv2.bias", embed)
        self.places = self.matrix(f"{encoder}.embed_positions.weight", config.positions, embed)
        self.encoder = _layers(config, dtype, 0)
        self.encoder_norm = NormWeights(f"{encoder}.layer_norm", embed)
        self.table = self.matrix(f"{decoder}.embed_tokens.weight", config.vocab, embed)
        self.positions = self.matrix(f"{decoder}.embed_positions.weight", config.context, embed)
        self.decoder = _layers(config, dtype, 1)
        self.decoder_norm = NormWeights(f"{decoder}.layer_norm", embed)
        self.head = None if config.tied else self.matrix(HEAD, config.vocab, embed)

    def prepared(self) -> Tree:
        """Return the arrays that programs take, with the layers of each half stacked."""
        table = self.table.get_value()
        return {
            "convolutions": [
                LinearArrays(self.convolution_1.get_value(), self.convolution_1_bias.get_value()),
                LinearArrays(self.convolution_2.get_value(), self.convolution_2_bias.get_value()),
            ],
            "places": self.places.get_value(),
            "encoder": _stacked(self.encoder),
            "encoder_norm": self.encoder_norm.arrays(),
            "table": table,
            "positions": self.positions.get_value(),
            "decoder": _stacked(self.decoder),
            "decoder_norm": self.decoder_norm.arrays(),
            # The table may be the head, too: it is in memory once.
            "head": None if self.head is None else self.head.get_value(),
        }


def _layers(config: WhisperConfig, dtype: Any, half: int) -> nnx.List[LayerWeights]:
    part = ("encoder", "decoder")[half]
    return nnx.List(
        LayerWeights(
            dtype,
            f"model.{part}.layers.{index}",
            config.embed,
            config.ffw[half],
            crosses=bool(half),
        )
        for index in range(config.layers[half])
    )


def _stacked(layers: Iterable[LayerWeights]) -> Tree:
    """Stack equal layers along a first dimension: a program computes them in one loop."""
    return jax.tree.map(lambda *each: jnp.stack(each), *(layer.arrays() for layer in layers))
