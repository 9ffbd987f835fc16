"""Saxml's image model, `ImageNetResNet50`: a ResNet-50 of images of 224 x 224 pixels.

Source: `saxml.server.pax.vision.params.resnet`. As there it answers with the five likeliest of
ImageNet's 1,000 classes, one image a step; unlike there it also embeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from model_server.models.vision.resnet import RESNET, UNUSED, ResNetConfig, recipe_of
from model_server.models.vision.vision_recipe import VISION_DEFAULTS, VisionClass, VisionRecipe
from sax.errors import CheckpointError

PATH = "saxml.server.pax.vision.params.resnet.ImageNetResNet50"
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


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> VisionRecipe:
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
    PATH,
    RESNET.model_types,
    {**VISION_DEFAULTS, "IMAGE_SIZE": 224, "BATCH_SIZE": [1]},
    configure,
    needs_checkpoint=False,
    title="ImageNetResNet50",
    unused=UNUSED,
    found_by_type=False,
)
