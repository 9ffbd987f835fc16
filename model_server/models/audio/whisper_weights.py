"""The weights of Whisper, as checkpoints of `WhisperForConditionalGeneration` hold them.

Equal layers are stacked along a first dimension: a program computes them in one loop. Heads, hidden
units and the vocabulary are divided over the model axis of a mesh. The width is not over the data
axis, which divides windows: every token of a transcript would move most weights to other devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.models.audio.audio_recipe import HEAD
from model_server.models.audio.whisper_config import WhisperConfig
from model_server.models.weights.sharding import Layout
from model_server.models.weights.source import Stacked, Tensor
from model_server.models.weights.weight import WeightForm, weight

Tree = dict[str, Any]
Axis = str | None


class LinearArrays(NamedTuple):
    kernel: jax.Array  # [..., out, in]
    bias: jax.Array | None  # f32[..., out]


class Norm(NamedTuple):
    scale: jax.Array  # f32[..., D]
    bias: jax.Array  # f32[..., D]


def heads_axis(layout: Layout, heads: int) -> Axis:
    """Return the logical axis of heads; None: the devices cannot share them evenly, and each
    computes them all.
    """
    return "heads" if heads % layout.shards("heads") == 0 else None


def _matrix(name: str, shape: tuple[int, ...], axes: tuple[Axis, ...], dtype: Any) -> nnx.Param:
    return weight(shape, axes, (name,), dtype=dtype, spread=0.02)


def _vector(name: str, size: int) -> nnx.Param:
    return weight((size,), (None,), (name,), dtype=jnp.float32, spread=0.0)


class NormWeights(nnx.Module):
    def __init__(self, name: str, size: int) -> None:
        self.scale = _vector(f"{name}.weight", size)
        self.bias = _vector(f"{name}.bias", size)

    def arrays(self) -> Norm:
        return Norm(self.scale.get_value(), self.bias.get_value())


def _stack(
    layers: Sequence[str], name: str, shape: tuple[int, ...], axes: tuple[Axis, ...], dtype: Any
) -> nnx.Param:
    """Declare the weights that each layer has under the same name; layers: names of them."""
    source = Stacked(tuple(Tensor(f"{layer}.{name}") for layer in layers))
    spread = 0.02 if len(shape) > 1 else 0.0
    return weight((len(layers), *shape), (None, *axes), source, dtype=dtype, spread=spread)


class LayerNorms(nnx.Module):
    def __init__(self, layers: Sequence[str], name: str, size: int) -> None:
        self.scale, self.bias = (
            _stack(layers, f"{name}.{part}", (size,), (None,), jnp.float32)
            for part in ("weight", "bias")
        )

    def arrays(self) -> Norm:
        return Norm(self.scale.get_value(), self.bias.get_value())


class LayerLinears(nnx.Module):
    def __init__(
        self,
        form: WeightForm,
        layers: Sequence[str],
        name: str,
        sizes: tuple[int, int],
        axes: tuple[Axis, Axis],
        *,
        biased: bool = True,
    ) -> None:
        """sizes, axes: of outputs and inputs."""
        self.kernel = _stack(layers, f"{name}.weight", sizes, axes, form.dtype)
        self.bias = (
            _stack(layers, f"{name}.bias", sizes[:1], axes[:1], jnp.float32) if biased else None
        )

    def arrays(self) -> LinearArrays:
        bias = None if self.bias is None else self.bias.get_value()
        return LinearArrays(self.kernel.get_value(), bias)


class AttentionWeights(nnx.Module):
    def __init__(
        self, form: WeightForm, layers: Sequence[str], name: str, embed: int, heads: int
    ) -> None:
        axis, sizes = heads_axis(form.layout, heads), (embed, embed)
        self.q, self.k, self.v = (
            LayerLinears(
                form, layers, f"{name}.{part}_proj", sizes, (axis, None), biased=part != "k"
            )
            for part in "qkv"
        )
        self.out = LayerLinears(form, layers, f"{name}.out_proj", sizes, (None, axis))

    def arrays(self) -> Tree:
        parts = {"q": self.q, "k": self.k, "v": self.v, "out": self.out}
        return {key: each.arrays() for key, each in parts.items()}


class LayersWeights(nnx.Module):
    """Layers of the encoder, or of the decoder, which also attend to the encoder."""

    def __init__(self, config: WhisperConfig, form: WeightForm, half: int) -> None:
        name = ("encoder", "decoder")[half]
        layers = [f"model.{name}.layers.{index}" for index in range(config.layers[half])]
        embed, ffw, heads = config.embed, config.ffw[half], config.heads[half]
        self.norm = LayerNorms(layers, "self_attn_layer_norm", embed)
        self.attention = AttentionWeights(form, layers, "self_attn", embed, heads)
        self.cross_norm = LayerNorms(layers, "encoder_attn_layer_norm", embed) if half else None
        self.cross = AttentionWeights(form, layers, "encoder_attn", embed, heads) if half else None
        self.ffw_norm = LayerNorms(layers, "final_layer_norm", embed)
        self.up = LayerLinears(form, layers, "fc1", (ffw, embed), ("ffw", None))
        self.down = LayerLinears(form, layers, "fc2", (embed, ffw), (None, "ffw"))

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


class FrameFilter(nnx.Module):
    def __init__(self, dtype: Any, name: str, outs: int, ins: int) -> None:
        self.kernel = _matrix(f"{name}.weight", (outs, ins, 3), (None,) * 3, dtype)
        self.bias = _vector(f"{name}.bias", outs)

    def arrays(self) -> LinearArrays:
        return LinearArrays(self.kernel.get_value(), self.bias.get_value())


class Whisper(nnx.Module):
    """The weights; `whisper` computes with their `arrays`."""

    def __init__(self, config: WhisperConfig, form: WeightForm) -> None:
        embed, encoder, decoder = config.embed, "model.encoder", "model.decoder"
        self.convolutions = nnx.List(
            FrameFilter(form.dtype, f"{encoder}.conv{number}", embed, ins)
            for number, ins in ((1, config.bins), (2, embed))
        )

        def table(name: str, rows: int, axis: Axis) -> nnx.Param:
            return _matrix(name, (rows, embed), (axis, None), form.dtype)

        self.places = table(f"{encoder}.embed_positions.weight", config.positions, None)
        self.encoder = LayersWeights(config, form, 0)
        self.encoder_norm = NormWeights(f"{encoder}.layer_norm", embed)
        self.table = table(f"{decoder}.embed_tokens.weight", config.vocab, "vocab")
        self.positions = table(f"{decoder}.embed_positions.weight", config.context, None)
        self.decoder = LayersWeights(config, form, 1)
        self.decoder_norm = NormWeights(f"{decoder}.layer_norm", embed)
        self.head = None if config.tied else table(HEAD, config.vocab, "vocab")

    def arrays(self) -> Tree:
        """Return the arrays that programs take, with the layers of each half stacked."""
        return {
            "convolutions": [each.arrays() for each in self.convolutions],
            "places": self.places.get_value(),
            "encoder": self.encoder.arrays(),
            "encoder_norm": self.encoder_norm.arrays(),
            "table": self.table.get_value(),
            "positions": self.positions.get_value(),
            "decoder": self.decoder.arrays(),
            "decoder_norm": self.decoder_norm.arrays(),
            # The table may be the head, too: it is in memory once.
            "head": None if self.head is None else self.head.get_value(),
        }
