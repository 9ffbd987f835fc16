"""MobileNet-V5, the tower of Gemma 3n: convolutions, and attention to one head of keys and values.

Its last two stages are brought to one size, joined and projected, and their squares averaged.
Source: Qin et al. 2024, "MobileNetV4" (arXiv:2404.10518), for the blocks; sizes and names are those
of timm's `mobilenetv5_300m_enc`, which transformers builds for `Gemma3nForConditionalGeneration`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_server.models.layers.layers import RmsNorm, project, run_layer
from model_server.models.weights.weight import WeightForm, weight

_EPSILON = 1e-6  # of every norm
_STEM, _KERNEL, _STRIDE = 64, 3, 2  # channels, side and stride of the first convolution
_FUSED, _FUSED_EXPANSION = 2, 2.0  # stages that are joined, and how many times wider they become
_DIVISOR, _LEAST_SHARE = 8, 0.9  # of numbers of channels
_LAYER_SCALE = 1e-5  # of random weights


class MobileBlock(NamedTuple):
    """One block of a stage."""

    kind: Literal["er", "uir", "mqa"]  # as timm calls them: EdgeBlock, InvertedBlock, QueryBlock
    channels: int
    stride: int = 1
    expansion: float = 1.0
    side: int = 0  # of the first kernel, or of those of keys and values; 0: there is none
    middle: int = 0  # of an InvertedBlock's kernel between its projections; 0: there is none
    heads: int = 0  # of queries
    head_dim: int = 0
    key_stride: int = 1  # places of keys and values that become one, in each direction


Stages = tuple[tuple[MobileBlock, ...], ...]


def _edge(channels: int, stride: int = 1) -> MobileBlock:
    return MobileBlock("er", channels, stride, 4.0, side=3)


def _inverted(
    channels: int, side: int, expansion: float, middle: int = 0, stride: int = 1
) -> MobileBlock:
    return MobileBlock("uir", channels, stride, expansion, side=side, middle=middle)


def _attending(channels: int, heads: int, head_dim: int, key_stride: int) -> MobileBlock:
    return MobileBlock(
        "mqa", channels, side=3, heads=heads, head_dim=head_dim, key_stride=key_stride
    )


GEMMA_3N: Stages = (
    (_edge(128, 2), _edge(128), _edge(128)),
    (
        _inverted(256, 3, 6.0, middle=5, stride=2),
        *(_inverted(256, side, 4.0) for side in (5, 3, 5, 3)),
    ),
    (
        _inverted(640, 5, 6.0, middle=5, stride=2),
        *[_inverted(640, 5, 4.0)] * 7,
        _inverted(640, 0, 1.0),
        *[_attending(640, 12, 64, 2), _inverted(640, 0, 2.0)] * 14,
    ),
    (
        _inverted(1280, 5, 6.0, middle=5, stride=2),
        *[_attending(1280, 16, 96, 1), _inverted(1280, 0, 2.0)] * 19,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MobileNetConfig:
    stages: Stages
    embed: int  # numbers of a vector
    image: int  # pixels of a side
    resolution: int  # vectors of a side

    @property
    def sides(self) -> tuple[int, ...]:
        """Places of a side after each stage."""
        made, side = list[int](), -(-self.image // _STRIDE)
        for first, *_ in self.stages:
            side = -(-side // first.stride)
            made.append(side)
        return tuple(made)

    @property
    def joined(self) -> int:
        """Places of a side where the last stages are joined."""
        return self.sides[-_FUSED]


def rounded_channels(wanted: float) -> int:
    """Return the multiple of 8 that timm rounds a number of channels to."""
    made = max(_DIVISOR, int(wanted + _DIVISOR / 2) // _DIVISOR * _DIVISOR)
    return made + _DIVISOR if made < _LEAST_SHARE * wanted else made


class PixelNorm(nnx.Module):
    """The norm behind a convolution, and its activation if there is one."""

    def __init__(self, channels: int, name: str, *, activated: bool = False) -> None:
        self.norm = RmsNorm(channels, (f"{name}.weight",), epsilon=_EPSILON)
        self.activated = activated

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.norm(x)
        return jax.nn.gelu(x) if self.activated else x


class WholeConvolution(nnx.Module):
    """Every channel of a place is made of all channels around it."""

    def __init__(
        self,
        outputs: int,
        inputs: int,
        name: str,
        form: WeightForm,
        *,
        stride: int,
        side: int = _KERNEL,
        biased: bool = False,
    ) -> None:
        self.stride, self.biased = stride, biased
        shape, axes = (outputs, inputs, side, side), (None, "embed", None, None)
        self.kernel = weight(shape, axes, (f"{name}.weight",), dtype=form.dtype, spread=0.02)
        if biased:
            bias = (f"{name}.bias",)
            self.bias = weight((outputs,), (None,), bias, dtype=jnp.float32, spread=0.0)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps f32[S, H, W, in] to f32[S, H / stride, W / stride, out]."""
        kernel = self.kernel.get_value()
        made = jax.lax.conv_general_dilated(
            x.astype(kernel.dtype),
            kernel,
            (self.stride, self.stride),
            "SAME",
            dimension_numbers=("NHWC", "OIHW", "NHWC"),
            precision=jax.lax.Precision.HIGHEST if kernel.dtype == jnp.float32 else None,
            preferred_element_type=jnp.float32,
        )
        return made + self.bias[...][None, None, None] if self.biased else made


class PixelProjection(nnx.Module):
    """A product with the channels of each place, stored as a convolution of one place."""

    def __init__(
        self,
        outputs: int,
        inputs: int,
        name: str,
        form: WeightForm,
        *,
        norm: str | None = None,
        activated: bool = False,
    ) -> None:
        """norm: its name; None: there is none behind it. activated: behind the norm."""
        shape, axes = (outputs, inputs, 1, 1), (None, "embed", None, None)
        self.kernel = weight(shape, axes, (f"{name}.weight",), dtype=form.dtype, spread=0.02)
        self.norm = None if norm is None else PixelNorm(outputs, norm, activated=activated)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps f32[..., in] to f32[..., out]."""
        made = project(x.reshape(-1, x.shape[-1]), self.kernel.get_value()[:, :, 0, 0])
        made = made.reshape(*x.shape[:-1], -1)
        return made if self.norm is None else self.norm(made)


class ChannelConvolution(nnx.Module):
    """Each channel's weighted sum of the places around each, and a norm."""

    def __init__(
        self,
        channels: int,
        name: str,
        norm: str,
        *,
        side: int,
        stride: int,
        activated: bool = False,
    ) -> None:
        self.side, self.stride = side, stride
        shape, source = (channels, 1, side, side), (f"{name}.weight",)
        self.kernel = weight(shape, (None,) * 4, source, dtype=jnp.float32, spread=0.1)
        self.norm = PixelNorm(channels, norm, activated=activated)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps f32[S, H, W, C] to f32[S, H / stride, W / stride, C]."""
        side, stride = self.side, self.stride
        high, wide = (-(-each // stride) for each in x.shape[1:3])
        around = [(0, 0), *map(self._around, x.shape[1:3]), (0, 0)]
        padded, taps = jnp.pad(x, around), self.kernel[...][:, 0]
        made = jnp.zeros((len(x), high, wide, x.shape[-1]), jnp.float32)
        for row, column in np.ndindex(side, side):
            seen = padded[:, row::stride, column::stride][:, :high, :wide]
            made += seen * taps[:, row, column][None, None, None]
        return self.norm(made)

    def _around(self, size: int) -> tuple[int, int]:
        """Return the zeros before and behind so many places."""
        missing = max((-(-size // self.stride) - 1) * self.stride + self.side - size, 0)
        return missing // 2, missing - missing // 2


class EdgeBlock(nnx.Module):
    """A convolution to more channels and a projection back, to which the input is added."""

    def __init__(self, block: MobileBlock, inputs: int, name: str, form: WeightForm) -> None:
        wide, outputs = rounded_channels(inputs * block.expansion), block.channels
        self.expand = WholeConvolution(
            wide, inputs, f"{name}.conv_exp", form, stride=block.stride, side=block.side
        )
        self.norm = PixelNorm(wide, f"{name}.bn1", activated=True)
        self.project = PixelProjection(outputs, wide, f"{name}.conv_pwl", form, norm=f"{name}.bn2")
        self.added = inputs == outputs and block.stride == 1

    def __call__(self, x: jax.Array) -> jax.Array:
        made = self.project(self.norm(self.expand(x)))
        return made + x if self.added else made


class InvertedBlock(nnx.Module):
    """Projections to more channels and back, with convolutions of each channel around the first."""

    def __init__(self, block: MobileBlock, inputs: int, name: str, form: WeightForm) -> None:
        wide, outputs = rounded_channels(inputs * block.expansion), block.channels

        def convolution(
            side: int, channels: int, part: str, *, stride: int, activated: bool
        ) -> ChannelConvolution | None:
            conv, norm = f"{name}.{part}.conv", f"{name}.{part}.bn"
            if not side:
                return None
            return ChannelConvolution(
                channels, conv, norm, side=side, stride=stride, activated=activated
            )

        def projection(to: int, of: int, part: str, *, activated: bool) -> PixelProjection:
            conv, norm = f"{name}.{part}.conv", f"{name}.{part}.bn"
            return PixelProjection(to, of, conv, form, norm=norm, activated=activated)

        first = 1 if block.middle else block.stride
        self.before = convolution(block.side, inputs, "dw_start", stride=first, activated=False)
        self.expand = projection(wide, inputs, "pw_exp", activated=True)
        self.between = convolution(
            block.middle, wide, "dw_mid", stride=block.stride, activated=True
        )
        self.project = projection(outputs, wide, "pw_proj", activated=False)
        self.scale = _layer_scale(outputs, name)
        self.added = inputs == outputs and block.stride == 1

    def __call__(self, x: jax.Array) -> jax.Array:
        made = x if self.before is None else self.before(x)
        made = self.expand(made)
        made = made if self.between is None else self.between(made)
        made = self.project(made) * self.scale[...][None, None, None]
        return made + x if self.added else made


class QueryBlock(nnx.Module):
    """x + attention(norm(x)): many heads of queries, and one of keys and values."""

    def __init__(self, block: MobileBlock, inputs: int, name: str, form: WeightForm) -> None:
        self.heads, self.head_dim = block.heads, block.head_dim
        inner, attention = block.heads * block.head_dim, f"{name}.attn"
        self.norm = PixelNorm(inputs, f"{name}.norm")
        self.query = PixelProjection(inner, inputs, f"{attention}.query.proj", form)
        parts = [f"{attention}.{part}" for part in ("key", "value")]
        self.fewer = nnx.List(
            [
                ChannelConvolution(
                    inputs,
                    f"{part}.down_conv",
                    f"{part}.norm",
                    side=block.side,
                    stride=block.key_stride,
                )
                for part in (parts if block.key_stride > 1 else [])
            ]
        )
        self.seen = nnx.List(
            [PixelProjection(block.head_dim, inputs, f"{part}.proj", form) for part in parts]
        )
        self.out = PixelProjection(block.channels, inner, f"{attention}.output.proj", form)
        self.scale = _layer_scale(block.channels, name)
        self.added = inputs == block.channels

    def __call__(self, x: jax.Array) -> jax.Array:
        normed = self.norm(x)
        dtype = self.out.kernel.get_value().dtype
        at = [fewer(normed) for fewer in self.fewer] or [normed] * 2
        k, v = (
            one(places).reshape(len(x), -1, self.head_dim).astype(dtype)
            for one, places in zip(self.seen, at, strict=True)
        )
        q = self.query(normed).reshape(len(x), -1, self.heads, self.head_dim).astype(dtype)
        scores = jnp.einsum("sphq,smq->shpm", q, k, preferred_element_type=jnp.float32)
        shares = jax.nn.softmax(scores * self.head_dim**-0.5, axis=-1).astype(dtype)
        mixed = jnp.einsum("shpm,smq->sphq", shares, v, preferred_element_type=jnp.float32)
        made = self.out(mixed.reshape(*x.shape[:3], -1)) * self.scale[...][None, None, None]
        return made + x if self.added else made


def _layer_scale(channels: int, name: str) -> nnx.Param:
    source = (f"{name}.layer_scale.gamma",)
    return weight((channels,), (None,), source, dtype=jnp.float32, spread=_LAYER_SCALE)


class StageFusion(nnx.Module):
    """Joins what the last stages give, projects it and averages its squares."""

    def __init__(
        self, config: MobileNetConfig, channels: Sequence[int], name: str, form: WeightForm
    ) -> None:
        """channels: of each stage that is joined."""
        self.resolution, inputs = config.resolution, sum(channels)
        wide = rounded_channels(inputs * _FUSED_EXPANSION)
        into, out = f"{name}.ffn.pw_exp", f"{name}.ffn.pw_proj"
        self.expand = PixelProjection(
            wide, inputs, f"{into}.conv", form, norm=f"{into}.bn", activated=True
        )
        self.project = PixelProjection(config.embed, wide, f"{out}.conv", form, norm=f"{out}.bn")
        self.norm = PixelNorm(config.embed, f"{name}.norm")

    def __call__(self, stages: Sequence[jax.Array]) -> jax.Array:
        """Maps f32[S, H, W, C] of each stage to f32[S, R, R, D]."""
        images, side, count = len(stages[0]), stages[0].shape[1], self.resolution
        x = jnp.concatenate([_enlarged(each, side) for each in stages], axis=-1)
        squares = (images, count, side // count, count, side // count, -1)
        return self.norm(self.project(self.expand(x)).reshape(squares).mean((2, 4)))


def _enlarged(x: jax.Array, side: int) -> jax.Array:
    """Repeat the rows and columns of f32[S, H, W, C] until there are `side` of each."""
    nearest = np.arange(side) * x.shape[1] // side
    return x if x.shape[1] == side else x[:, nearest][:, :, nearest]


_BLOCKS = {"er": EdgeBlock, "uir": InvertedBlock, "mqa": QueryBlock}


class MobileNet(nnx.Module):
    """Maps images f32[S, H, W, 3] to vectors f32[S, R, R, D]."""

    def __init__(self, config: MobileNetConfig, prefix: str, form: WeightForm) -> None:
        self.stem = WholeConvolution(
            _STEM, 3, f"{prefix}.conv_stem.conv", form, stride=_STRIDE, biased=True
        )
        self.of_stem = PixelNorm(_STEM, f"{prefix}.conv_stem.bn", activated=True)
        made, channels, joined = list[nnx.List](), _STEM, list[int]()
        for number, stage in enumerate(config.stages):
            blocks = list[nnx.Module]()
            for index, block in enumerate(stage):
                name = f"{prefix}.blocks.{number}.{index}"
                blocks.append(_BLOCKS[block.kind](block, channels, name, form))
                channels = block.channels
            made.append(nnx.List(blocks))
            joined.append(channels)
        self.stages = nnx.List(made)
        self.fusion = StageFusion(config, joined[-_FUSED:], f"{prefix}.msfa", form)

    def __call__(self, pixels: jax.Array) -> jax.Array:
        x, made = self.of_stem(self.stem(pixels)), list[jax.Array]()
        for stage in self.stages:
            for block in stage:
                x = run_layer(block, x)
            made.append(x)
        return self.fusion(made[-_FUSED:])
