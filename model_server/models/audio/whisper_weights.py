"""The weights of Whisper, as checkpoints of `WhisperForConditionalGeneration` hold them.

Heads, hidden units and the vocabulary are divided over the model axis of a mesh. The width is not
over the data axis, which divides windows: every token of a transcript would move most weights to
other devices.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.models.audio.audio_recipe import HEAD
from model_server.models.audio.whisper_config import WhisperConfig
from model_server.models.weights.sharding import Layout
from model_server.models.weights.weight import WeightForm, weight

Tree = dict[str, Any]
Axis = str | None


class LinearArrays(NamedTuple):
    kernel: Any  # [out, in, ...], an array or in tiles
    bias: jax.Array | None  # f32[out]


class Norm(NamedTuple):
    scale: jax.Array  # f32[D]
    bias: jax.Array  # f32[D]


def heads_axis(layout: Layout, heads: int) -> Axis:
    """Return the logical axis of heads; None: the devices cannot share them evenly, and each
    computes them all.
    """
    return "heads" if heads % layout.shards("heads") == 0 else None


def _matrix(name: str, shape: tuple[int, ...], axes: tuple[Axis, ...], dtype: Any) -> nnx.Param:
    return weight(shape, axes, (name,), dtype=dtype, spread=0.02)


def _linear(name: str, sizes: tuple[int, int], axes: tuple[Axis, Axis], form: WeightForm) -> Any:
    """Declare a matrix of a product; sizes, axes: of outputs and inputs."""
    return weight(sizes, axes, (name,), dtype=form.dtype, spread=0.02, tiles=form.in_tiles)


def _vector(name: str, size: int, axis: Axis = None) -> nnx.Param:
    return weight((size,), (axis,), (name,), dtype=jnp.float32, spread=0.0)


class NormWeights(nnx.Module):
    def __init__(self, name: str, size: int) -> None:
        self.scale = _vector(f"{name}.weight", size)
        self.bias = _vector(f"{name}.bias", size)

    def arrays(self) -> Norm:
        return Norm(self.scale.get_value(), self.bias.get_value())


class LinearWeights(nnx.Module):
    def __init__(
        self,
        form: WeightForm,
        name: str,
        sizes: tuple[int, int],
        axes: tuple[Axis, Axis],
        *,
        biased: bool = True,
    ) -> None:
        """sizes, axes: of outputs and inputs."""
        self.kernel = _linear(f"{name}.weight", sizes, axes, form)
        self.bias = _vector(f"{name}.bias", sizes[0], axes[0]) if biased else None

    def arrays(self) -> LinearArrays:
        bias = None if self.bias is None else self.bias.get_value()
        return LinearArrays(self.kernel.get_value(), bias)


class AttentionWeights(nnx.Module):
    def __init__(self, form: WeightForm, name: str, embed: int, heads: int) -> None:
        axis, sizes = heads_axis(form.layout, heads), (embed, embed)
        self.q, self.k, self.v = (
            LinearWeights(form, f"{name}.{part}_proj", sizes, (axis, None), biased=part != "k")
            for part in "qkv"
        )
        self.out = LinearWeights(form, f"{name}.out_proj", sizes, (None, axis))

    def arrays(self) -> Tree:
        parts = {"q": self.q, "k": self.k, "v": self.v, "out": self.out}
        return {key: each.arrays() for key, each in parts.items()}


class LayerWeights(nnx.Module):
    """A layer of the encoder, or of the decoder, which also attends to the encoder."""

    def __init__(self, config: WhisperConfig, form: WeightForm, half: int, index: int) -> None:
        name = f"model.{('encoder', 'decoder')[half]}.layers.{index}"
        embed, ffw, heads = config.embed, config.ffw[half], config.heads[half]
        self.norm = NormWeights(f"{name}.self_attn_layer_norm", embed)
        self.attention = AttentionWeights(form, f"{name}.self_attn", embed, heads)
        cross = f"{name}.encoder_attn"
        self.cross_norm = NormWeights(f"{cross}_layer_norm", embed) if half else None
        self.cross = AttentionWeights(form, cross, embed, heads) if half else None
        self.ffw_norm = NormWeights(f"{name}.final_layer_norm", embed)
        self.up = LinearWeights(form, f"{name}.fc1", (ffw, embed), ("ffw", None))
        self.down = LinearWeights(form, f"{name}.fc2", (embed, ffw), (None, "ffw"))

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

        def table(name: str) -> Any:
            return _linear(name, (config.vocab, embed), ("vocab", None), form)

        def places(half: str, rows: int) -> nnx.Param:
            name = f"{half}.embed_positions.weight"
            return _matrix(name, (rows, embed), (None, None), form.dtype)

        self.places = places(encoder, config.positions)
        self.encoder, self.decoder = (
            nnx.List(LayerWeights(config, form, half, at) for at in range(config.layers[half]))
            for half in (0, 1)
        )
        self.encoder_norm = NormWeights(f"{encoder}.layer_norm", embed)
        self.table = table(f"{decoder}.embed_tokens.weight")
        self.positions = places(decoder, config.context)
        self.decoder_norm = NormWeights(f"{decoder}.layer_norm", embed)
        self.head = None if config.tied else table(HEAD)

    def arrays(self) -> Tree:
        """Return the arrays that programs take."""
        return {
            "convolutions": [each.arrays() for each in self.convolutions],
            "places": self.places.get_value(),
            "encoder": [each.arrays() for each in self.encoder],
            "encoder_norm": self.encoder_norm.arrays(),
            "table": self.table.get_value(),
            "positions": self.positions.get_value(),
            "decoder": [each.arrays() for each in self.decoder],
            "decoder_norm": self.decoder_norm.arrays(),
            # The table may be the head, too: it is in memory once.
            "head": None if self.head is None else self.head.get_value(),
        }
