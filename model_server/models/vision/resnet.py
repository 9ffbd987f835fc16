"""ResNet: residual blocks of convolutions, each with a batch norm, then one linear layer.

Source: He et al. 2015 (arXiv:1512.03385), with the strides of He et al. 2018 (arXiv:1812.01187);
names and config keys are those of Hugging Face's `ResNetForImageClassification`.

Batch norms have fixed statistics when a model is served, so each is folded into the convolution
before it, once.

Saxml's `ImageNetResNet50` (`saxml.server.pax.vision.params.resnet`) is one of images of 224 x 224
pixels. As there it answers with the five likeliest of ImageNet's 1,000 classes, one image a step;
unlike there it also embeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import KnownKeys, ignored
from model_server.models.labels import labels_of
from model_server.models.layers.activations import Activation, activation_of
from model_server.models.vision.vision_recipe import (
    VISION_DEFAULTS,
    ImageOutputs,
    VisionClass,
    VisionRecipe,
    serving_values,
)
from model_server.models.weights.weight import blueprint, weight
from sax.errors import CheckpointError

KEYS = KnownKeys(
    "resnet",
    (
        "depths",
        "downsample_in_bottleneck",
        "downsample_in_first_stage",
        "embedding_size",
        "hidden_act",
        "hidden_sizes",
        "id2label",
        "layer_type",
        "num_channels",
        "num_labels",
    ),
    ignored("label2id", "out_features", "out_indices", "problem_type", "stage_names"),
)
_EPSILON = 1e-5  # of every batch norm
_REDUCTION = 4  # of the width inside a bottleneck
_SMALL = 0.2  # of random blocks beside their residual, which grows by each
_DIMENSIONS = ("NHWC", "HWIO", "NHWC")
_MOST_BLOCKS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ResNetConfig:
    embed: int  # channels before the first stage
    widths: tuple[int, ...]  # channels after each stage
    depths: tuple[int, ...]  # blocks of each stage
    bottleneck: bool
    activation: Activation
    downsample_first: bool  # the first stage halves the image, as all others do
    downsample_in_bottleneck: bool  # by a block's first convolution, not its second
    labels: tuple[str, ...]

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> ResNetConfig:
        """Parse `config.json`. Raises CheckpointError for unsupported settings."""
        keys = ConfigKeys(config, KEYS)
        keys.only("num_channels", 3)
        bottleneck = keys.only("layer_type", "bottleneck", "basic") == "bottleneck"
        widths = _wholes(keys, "hidden_sizes", [256, 512, 1024, 2048])
        depths = _wholes(keys, "depths", [3, 4, 6, 3])
        if len(widths) != len(depths) or sum(depths) > _MOST_BLOCKS:
            raise CheckpointError(
                f"config.json has hidden_sizes = {list(widths)} and depths = {list(depths)}; give "
                f"one of each a stage, and at most {_MOST_BLOCKS} blocks"
            )
        return cls(
            embed=keys.whole("embedding_size", 64),
            widths=widths,
            depths=depths,
            bottleneck=bottleneck,
            activation=activation_of(keys.get("hidden_act", "relu")),
            downsample_first=keys.flag("downsample_in_first_stage"),
            downsample_in_bottleneck=keys.flag("downsample_in_bottleneck"),
            labels=labels_of(config),
        )


def _wholes(keys: ConfigKeys, key: str, default: list[int]) -> tuple[int, ...]:
    value = keys.get(key, default)
    if not isinstance(value, list) or not value or any(type(each) is not int for each in value):
        raise CheckpointError(f"config.json has {key} = {value!r}; give a list of whole numbers")
    if not all(1 <= each < 2**16 for each in value):
        raise CheckpointError(f"config.json has {key} = {value!r}; give sizes from 1 to 65535")
    return tuple(value)


class Folded(NamedTuple):
    """A convolution with its norm."""

    kernel: jax.Array  # [height, width, in, out]
    bias: jax.Array  # f32[out]


class ConvNorm(nnx.Module):
    """The weights of a convolution and its batch norm, as checkpoints hold them."""

    def __init__(self, outs: int, ins: int, side: int, name: str, gain: float = 1.0) -> None:
        spread = gain * math.sqrt(2.0 / (ins * side * side))
        source = (f"{name}.convolution.weight",)
        self.kernel = _weight((outs, ins, side, side), source, spread)
        norm = f"{name}.normalization"
        self.scale = _weight((outs,), (f"{norm}.weight",), None)
        self.bias = _weight((outs,), (f"{norm}.bias",), 0.0)
        self.mean = _weight((outs,), (f"{norm}.running_mean",), 0.0)
        self.variance = _weight((outs,), (f"{norm}.running_var",), None)

    def folded(self, dtype: Any) -> Folded:
        scale, bias, mean, variance = (
            each.get_value() for each in (self.scale, self.bias, self.mean, self.variance)
        )
        factor = scale * lax.rsqrt(variance + _EPSILON)
        kernel = self.kernel.get_value() * factor[:, None, None, None]
        return Folded(kernel.transpose(2, 3, 1, 0).astype(dtype), bias - mean * factor)


def _weight(shape: tuple[int, ...], source: tuple[str, ...], spread: float | None) -> nnx.Param:
    return weight(shape, (None,) * len(shape), source, dtype=jnp.float32, spread=spread)


class BlockShape(NamedTuple):
    """One block's place and sizes; what is static in a program."""

    name: str
    ins: int
    outs: int
    stride: int


def blocks_of(config: ResNetConfig) -> Iterator[BlockShape]:
    ends = pairwise((config.embed, *config.widths))
    for stage, ((ins, outs), depth) in enumerate(zip(ends, config.depths, strict=True)):
        first = 2 if stage or config.downsample_first else 1
        for index in range(depth):
            name = f"resnet.encoder.stages.{stage}.layers.{index}"
            yield BlockShape(name, outs if index else ins, outs, 1 if index else first)


def strides_of(config: ResNetConfig, stride: int) -> tuple[int, ...]:
    """Return the stride of each convolution of a block that begins with this one."""
    if not config.bottleneck:
        return stride, 1
    return (stride, 1, 1) if config.downsample_in_bottleneck else (1, stride, 1)


class Block(nnx.Module):
    def __init__(self, config: ResNetConfig, shape: BlockShape) -> None:
        name, ins, outs, stride = shape
        inner = outs // _REDUCTION
        sizes = (
            [(inner, ins, 1), (inner, inner, 3), (outs, inner, 1)]
            if config.bottleneck
            else [(outs, ins, 3), (outs, outs, 3)]
        )
        last = len(sizes) - 1
        self.layer = nnx.List(
            ConvNorm(*size, f"{name}.layer.{index}", _SMALL if index == last else 1.0)
            for index, size in enumerate(sizes)
        )
        changes = ins != outs or stride != 1
        self.shortcut = ConvNorm(outs, ins, 1, f"{name}.shortcut") if changes else None

    def folded(self, dtype: Any) -> tuple[list[Folded], Folded | None]:
        shortcut = self.shortcut and self.shortcut.folded(dtype)
        return [each.folded(dtype) for each in self.layer], shortcut


class ResNet(nnx.Module):
    """The weights; `see` computes with what `prepared` makes of them."""

    def __init__(self, config: ResNetConfig, dtype: Any) -> None:
        self.dtype = dtype
        self.stem = ConvNorm(config.embed, 3, 7, "resnet.embedder.embedder")
        self.blocks = nnx.List(Block(config, shape) for shape in blocks_of(config))
        labels, last = len(config.labels), config.widths[-1]
        self.head = _weight((labels, last), ("classifier.1.weight",), last**-0.5)
        self.head_bias = _weight((labels,), ("classifier.1.bias",), 0.0)

    def prepared(self) -> dict[str, Any]:
        return {
            "stem": self.stem.folded(self.dtype),
            "blocks": [block.folded(self.dtype) for block in self.blocks],
            "head": self.head.get_value(),
            "head_bias": self.head_bias.get_value(),
        }


def see(config: ResNetConfig, weights: dict[str, Any], pixels: jax.Array) -> ImageOutputs:
    """Compute vectors and logits of pixels f32[B, S, S, 3]; weights: of `ResNet.prepared`."""
    x = config.activation(_convolved(pixels, weights["stem"], 2))
    x = lax.reduce_window(
        x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0))
    )
    for (layer, shortcut), shape in zip(weights["blocks"], blocks_of(config), strict=True):
        residual = x if shortcut is None else _convolved(x, shortcut, shape.stride)
        for folded, stride in zip(layer, strides_of(config, shape.stride), strict=True):
            x = _convolved(x, folded, stride)
            x = x if folded is layer[-1] else config.activation(x)
        x = config.activation(x + residual)
    vectors = x.mean((1, 2))
    product = jnp.dot(vectors, weights["head"].T, precision=lax.Precision.HIGHEST)
    return ImageOutputs(vectors, product + weights["head_bias"])


def _convolved(x: jax.Array, folded: Folded, stride: int) -> jax.Array:
    """f32[B, H, W, in] to f32[B, H / stride, W / stride, out]."""
    kernel, bias = folded
    edge = kernel.shape[0] // 2
    exact = kernel.dtype == jnp.float32
    made = lax.conv_general_dilated(
        x.astype(kernel.dtype),
        kernel,
        (stride, stride),
        ((edge, edge), (edge, edge)),
        dimension_numbers=_DIMENSIONS,
        precision=lax.Precision.HIGHEST if exact else None,
        preferred_element_type=jnp.float32,
    )
    return made + bias


def recipe_of(config: ResNetConfig, values: Mapping[str, Any]) -> VisionRecipe:
    """Return the recipe of a network with the values of a publish. Raises InvalidRequest."""
    serving = serving_values(values)
    dtype = jnp.dtype(values["DTYPE"])
    return VisionRecipe(
        blueprint=blueprint(lambda: ResNet(config, dtype)),
        see=partial(see, config),
        labels=config.labels,
        embed=config.widths[-1],
        **serving,
    )


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> VisionRecipe:
    assert config is not None, "the registry says that it needs a checkpoint"
    return recipe_of(ResNetConfig.from_hf(config), values)


UNUSED = (".num_batches_tracked",)  # of training
RESNET = VisionClass(
    "resnet",
    ("resnet",),
    VISION_DEFAULTS,
    configure,
    needs_checkpoint=True,
    title="ResNet",
    unused=UNUSED,
)


IMAGENET_PATH = "saxml.server.pax.vision.params.resnet.ImageNetResNet50"
_LABELS = 1000
# Random weights know no names of classes.
_RESNET_50 = ResNetConfig(
    embed=64,
    widths=(256, 512, 1024, 2048),
    depths=(3, 4, 6, 3),
    bottleneck=True,
    activation=jax.nn.relu,
    downsample_first=False,
    downsample_in_bottleneck=False,
    labels=tuple(str(index) for index in range(_LABELS)),
)


def _configure_imagenet(
    config: Mapping[str, Any] | None, values: Mapping[str, Any]
) -> VisionRecipe:
    """Raises CheckpointError for a checkpoint of another network, InvalidRequest."""
    return recipe_of(_RESNET_50 if config is None else _agreed(config), values)


def _agreed(config: Mapping[str, Any]) -> ResNetConfig:
    found = ResNetConfig.from_hf(config)
    for name in ("embed", "widths", "depths", "bottleneck"):
        own, stored = getattr(_RESNET_50, name), getattr(found, name)
        if own != stored:
            raise CheckpointError(
                f"ImageNetResNet50 is a ResNet-50 with {name} {own}, and the checkpoint's is "
                f'{stored}: publish it as "{RESNET.path}", which reads its sizes there'
            )
    if len(found.labels) != _LABELS:
        raise CheckpointError(
            f"ImageNetResNet50 has {_LABELS} classes, and the checkpoint {len(found.labels)}: "
            f'publish it as "{RESNET.path}"'
        )
    return found


IMAGENET_RESNET_50 = VisionClass(
    IMAGENET_PATH,
    RESNET.model_types,
    {**VISION_DEFAULTS, "IMAGE_SIZE": 224, "BATCH_SIZE": [1]},
    _configure_imagenet,
    needs_checkpoint=False,
    title="ImageNetResNet50",
    unused=UNUSED,
    found_by_type=False,
)
