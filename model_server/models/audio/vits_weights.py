"""The weights of VITS, as checkpoints of `VitsModel` hold them, without those that only training
needs.

Kernels with weight normalisation are stored as directions and magnitudes and are read as their
product. One device holds them all: the largest published models have 40 million numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.checkpoint_view import view_of
from model_server.checkpoints.region import Region, region_shape, whole
from model_server.kernels.aligned import aligned_empty
from model_server.models.audio.vits_config import VitsConfig
from model_server.models.audio.whisper_weights import NormWeights
from model_server.models.weights.source import Empty, RegionPiece, Tensors, WeightSource
from model_server.models.weights.weight import weight

Tree = dict[str, Any]
_SPREAD = 0.02
_DIRECTION, _MAGNITUDE = ".weight_v", ".weight_g"
# What newer files call them.
_RENAMED = {
    ".parametrizations.weight.original0": _MAGNITUDE,
    ".parametrizations.weight.original1": _DIRECTION,
}
# The inverse of the duration predictor leaves out its first spline, as the reference does.
_TRAINING = ("posterior_encoder.", "duration_predictor.post_", "duration_predictor.flows.1.")
_SPEAKERS = ("embed_speaker.", ".cond.", ".cond_layer.")


class LayerArrays(NamedTuple):
    kernel: jax.Array  # [out, in, W], or transposed [in, out, W]
    bias: jax.Array | None  # f32[out]


class Affine(NamedTuple):
    translate: jax.Array  # f32[2, 1]
    log_scale: jax.Array  # f32[2, 1]


@dataclass(frozen=True, slots=True)
class WeightNormed(WeightSource):
    """A kernel [out, in, W] stored as a direction of each output and its length (Salimans and
    Kingma 2016, arXiv:1602.07868)."""

    name: str  # of the layer

    @property
    def names(self) -> tuple[str, ...]:
        return self.name + _DIRECTION, self.name + _MAGNITUDE

    def shape(self, tensors: Tensors) -> tuple[int, ...]:
        direction, magnitude = map(tensors.shape, self.names)
        if magnitude != (direction[0], *(1 for _ in direction[1:])):
            raise self._misshapen(tensors, "there must be one length for each output")
        return direction

    def pieces(self, tensors: Tensors, region: Region) -> Iterator[RegionPiece]:
        yield RegionPiece(self.names[0], region, whole(region_shape(region)))

    def read(
        self,
        tensors: Tensors,
        region: Region,
        dtype: Any = None,
        empty: Empty = aligned_empty,
    ) -> np.ndarray:
        outputs, *rest = region
        sides = whole(self.shape(tensors)[1:])
        direction = tensors.read(self.names[0], (outputs, *sides)).astype(np.float32)
        magnitude = tensors.read(self.names[1], (outputs, *(slice(0, 1) for _ in sides)))
        length = np.sqrt(np.square(direction).sum((1, 2), keepdims=True))
        kernel = direction * (magnitude.astype(np.float32) / length)
        out = empty(region_shape(region), dtype or np.float32)
        out[...] = kernel[(slice(None), *rest)]
        return out


def needed(checkpoint: Checkpoint, config: VitsConfig) -> Checkpoint:
    """Return the checkpoint without what inference does not use, under the names of its time of
    publication."""
    unused = (*_TRAINING[:1], *(_TRAINING[1:] if config.duration.stochastic else ()))
    names: dict[str, str] = {}
    for name in checkpoint.names():
        if name.startswith(unused):
            continue
        if not config.speaker_embed and any(part in f".{name}" for part in _SPEAKERS):
            continue
        old = next((end for end in _RENAMED if name.endswith(end)), "")
        names[name.removesuffix(old) + _RENAMED[old] if old else name] = name
    return view_of(checkpoint, names)


class Layer(nnx.Module):
    """A convolution, or a projection as one of a single tap."""

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: Any,
        *,
        bias: int | None = None,
        normed: bool = False,
    ) -> None:
        """bias: numbers of it, 0: none; None: one for each output."""
        source = WeightNormed(name) if normed else (f"{name}.weight",)
        axes = (None,) * len(shape)
        self.kernel = weight(shape, axes, source, dtype=dtype, spread=_SPREAD)
        size = shape[0] if bias is None else bias
        self.bias = _vector(f"{name}.bias", (size,)) if size else None

    def arrays(self) -> LayerArrays:
        bias = None if self.bias is None else self.bias.get_value()
        return LayerArrays(self.kernel.get_value(), bias)


def _vector(name: str, shape: tuple[int, ...]) -> nnx.Param:
    return weight(shape, (None,) * len(shape), (name,), dtype=jnp.float32, spread=0.0)


def _arrays(module: Any) -> Any:
    """Return the arrays of modules in lists and by name; None stays None."""
    if isinstance(module, nnx.List):
        return [_arrays(each) for each in module]
    if isinstance(module, nnx.Param):
        return module.get_value()
    return None if module is None else module.arrays()


class ArraysByName(nnx.Module):
    """A module whose arrays are those of its attributes, by name."""

    def arrays(self) -> Tree:
        return {name: _arrays(each) for name, each in vars(self).items() if name[0] != "_"}


class EncoderLayer(ArraysByName):
    def __init__(self, config: VitsConfig, name: str, dtype: Any) -> None:
        embed, attention = config.embed, f"{name}.attention"
        bias = embed if config.biased else 0
        self.q, self.k, self.v, self.out = (
            Layer(f"{attention}.{part}_proj", (embed, embed), dtype, bias=bias)
            for part in ("q", "k", "v", "out")
        )
        shape = (1, 2 * config.window + 1, embed // config.heads)
        self.near_keys = _vector(f"{attention}.emb_rel_k", shape)
        self.near_values = _vector(f"{attention}.emb_rel_v", shape)
        self.norm = NormWeights(f"{name}.layer_norm", embed)
        taps, feed = config.ffw_kernel, f"{name}.feed_forward"
        self.up = Layer(f"{feed}.conv_1", (config.ffw, embed, taps), dtype)
        self.down = Layer(f"{feed}.conv_2", (embed, config.ffw, taps), dtype)
        self.ffw_norm = NormWeights(f"{name}.final_layer_norm", embed)


class SeparableStack(ArraysByName):
    """Dilated convolutions of each channel alone, each followed by a mix of all."""

    def __init__(self, config: VitsConfig, name: str, dtype: Any) -> None:
        embed, taps, layers = config.embed, config.duration.kernel, range(config.duration.layers)
        self.apart = nnx.List(
            Layer(f"{name}.convs_dilated.{at}", (embed, 1, taps), dtype) for at in layers
        )
        self.mixed = nnx.List(
            Layer(f"{name}.convs_pointwise.{at}", (embed, embed, 1), dtype) for at in layers
        )
        self.apart_norms, self.mixed_norms = (
            nnx.List(NormWeights(f"{name}.norms_{number}.{at}", embed) for at in layers)
            for number in (1, 2)
        )


class SplineFlow(ArraysByName):
    def __init__(self, config: VitsConfig, name: str, dtype: Any) -> None:
        embed, outputs = config.embed, 3 * config.duration.bins - 1
        self.before = Layer(f"{name}.conv_pre", (embed, 1, 1), dtype)
        self.stack = SeparableStack(config, f"{name}.conv_dds", dtype)
        self.after = Layer(f"{name}.conv_proj", (outputs, embed, 1), dtype)


class AffineFlow(nnx.Module):
    def __init__(self, name: str) -> None:
        self.translate = _vector(f"{name}.translate", (2, 1))
        self.log_scale = _vector(f"{name}.log_scale", (2, 1))

    def arrays(self) -> Affine:
        return Affine(self.translate.get_value(), self.log_scale.get_value())


class StochasticDurations(ArraysByName):
    def __init__(self, config: VitsConfig, name: str, dtype: Any) -> None:
        embed = config.embed
        self.before = Layer(f"{name}.conv_pre", (embed, embed, 1), dtype)
        self.after = Layer(f"{name}.conv_proj", (embed, embed, 1), dtype)
        self.stack = SeparableStack(config, f"{name}.conv_dds", dtype)
        self.speaker = _condition(config, f"{name}.cond", embed, dtype)
        self.affine = AffineFlow(f"{name}.flows.0")
        self.splines = nnx.List(
            SplineFlow(config, f"{name}.flows.{at}", dtype)
            for at in range(2, config.duration.flows + 1)
        )


class PlainDurations(ArraysByName):
    def __init__(self, config: VitsConfig, name: str, dtype: Any) -> None:
        embed, filters, taps = config.embed, config.duration.filters, config.duration.kernel
        self.first = Layer(f"{name}.conv_1", (filters, embed, taps), dtype)
        self.first_norm = NormWeights(f"{name}.norm_1", filters)
        self.second = Layer(f"{name}.conv_2", (filters, filters, taps), dtype)
        self.second_norm = NormWeights(f"{name}.norm_2", filters)
        self.after = Layer(f"{name}.proj", (1, filters, 1), dtype)
        self.speaker = _condition(config, f"{name}.cond", embed, dtype)


class CouplingFlow(ArraysByName):
    def __init__(self, config: VitsConfig, name: str, dtype: Any) -> None:
        embed, half, layers = config.embed, config.channels // 2, config.wavenet_layers
        taps, net = config.wavenet_kernel, f"{name}.wavenet"
        self.before = Layer(f"{name}.conv_pre", (embed, half, 1), dtype)
        self.gates = nnx.List(
            Layer(f"{net}.in_layers.{at}", (2 * embed, embed, taps), dtype, normed=True)
            for at in range(layers)
        )
        self.outputs = nnx.List(
            Layer(
                f"{net}.res_skip_layers.{at}",
                (embed if at == layers - 1 else 2 * embed, embed, 1),
                dtype,
                normed=True,
            )
            for at in range(layers)
        )
        outputs = 2 * embed * layers
        self.speaker = _condition(config, f"{net}.cond_layer", outputs, dtype, normed=True)
        self.after = Layer(f"{name}.conv_post", (half, embed, 1), dtype)


class ResidualBlock(ArraysByName):
    def __init__(self, name: str, channels: int, kernel: int, count: int, dtype: Any) -> None:
        shape = (channels, channels, kernel)
        self.dilated, self.plain = (
            nnx.List(Layer(f"{name}.{part}.{at}", shape, dtype) for at in range(count))
            for part in ("convs1", "convs2")
        )


class HifiGan(ArraysByName):
    """The decoder (Kong et al. 2020, arXiv:2010.05646)."""

    def __init__(self, config: VitsConfig, name: str, dtype: Any) -> None:
        channels = config.decoder_channels
        self.before = Layer(f"{name}.conv_pre", (channels, config.channels, 7), dtype)
        self.speaker = _condition(config, f"{name}.cond", channels, dtype)
        self.upsamplings, self.residuals = nnx.List(), nnx.List()
        for at, (_, kernel) in enumerate(config.upsamplings):
            inner, outer = channels >> at, channels >> (at + 1)
            self.upsamplings.append(
                Layer(f"{name}.upsampler.{at}", (inner, outer, kernel), dtype, bias=outer)
            )
            for number, sizes in enumerate(config.residuals, at * len(config.residuals)):
                block = f"{name}.resblocks.{number}"
                count = len(sizes.dilations)
                self.residuals.append(ResidualBlock(block, outer, sizes.kernel, count, dtype))
        last = channels >> len(config.upsamplings)
        self.after = Layer(f"{name}.conv_post", (1, last, 7), dtype, bias=0)


def _condition(
    config: VitsConfig, name: str, outputs: int, dtype: Any, *, normed: bool = False
) -> Layer | None:
    """Return what brings the speaker in; None: there is one."""
    size = config.speaker_embed
    return Layer(name, (outputs, size, 1), dtype, normed=normed) if size else None


class Vits(ArraysByName):
    """The weights; `vits` computes with their `arrays`."""

    def __init__(self, config: VitsConfig, dtype: Any) -> None:
        encoder, durations = "text_encoder", "duration_predictor"
        self.table = _table(f"{encoder}.embed_tokens.weight", config.vocab, config.embed)
        self.layers = nnx.List(
            EncoderLayer(config, f"{encoder}.encoder.layers.{at}", dtype)
            for at in range(config.layers)
        )
        shape = (2 * config.channels, config.embed, 1)
        self.prior = Layer(f"{encoder}.project", shape, dtype)
        kind = StochasticDurations if config.duration.stochastic else PlainDurations
        self.durations = kind(config, durations, dtype)
        self.flows = nnx.List(
            CouplingFlow(config, f"flow.flows.{at}", dtype) for at in range(config.flows)
        )
        self.decoder = HifiGan(config, "decoder", dtype)
        self.speakers = (
            _table("embed_speaker.weight", config.speakers, config.speaker_embed)
            if config.speaker_embed
            else None
        )


def _table(name: str, rows: int, size: int) -> nnx.Param:
    return weight((rows, size), (None, None), (name,), dtype=jnp.float32, spread=_SPREAD)
