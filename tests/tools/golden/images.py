"""Small random classifiers of images, and transformers' logits.

A folder holds config.json and preprocessor_config.json, which are given; tensors.json (name ->
shape) and golden.npz, which are made: images as they are sent, u8[H, W, 3] each; of the first one
the pixels as the processor makes them, f32[3, S, S], of a large one every eighth in both
directions; of each image the logits f32[labels] and the pooled vector f32[D]; how they were made.
Weights follow from the names (see `tensor_of`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.golden.random_tensor import random_tensor
from tests.tools.golden import common
from tests.tools.golden.media.case import image_of

HERE = common.GOLDEN / "images"
SIZES = ((61, 43), (38, 97))  # height and width of the images
# Name -> config.json and preprocessor_config.json.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    name: (
        common.read_json(HERE / name / "config.json"),
        common.read_json(HERE / name / "preprocessor_config.json"),
    )
    for name in (
        "resnet",
        "resnet_basic",  # as microsoft/resnet-50: an old name, and a size without its edge
        "resnet_downsampling",  # from its size on, images are squeezed, not cut
    )
}


def tensor_of(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A weight by its name: kernels of convolutions are drawn as the matrices that they are."""
    if name.endswith("num_batches_tracked"):
        return np.asarray(7, np.int64)
    if len(shape) < 4:
        return random_tensor(name, shape)
    return random_tensor(name, (shape[0], int(np.prod(shape[1:])))).reshape(shape)


def thinned(pixels: np.ndarray) -> np.ndarray:
    """f32[3, S, S] for the golden file."""
    step = 1 if pixels.shape[-1] < 100 else 8
    return pixels[:, ::step, ::step]


def make(name: str, into: Path) -> None:
    import torch
    import transformers
    from transformers.models.convnext.image_processing_pil_convnext import ConvNextImageProcessorPil

    config, form = CASES[name]
    read = transformers.ResNetConfig.from_dict(dict(config))
    model = transformers.ResNetForImageClassification(read).eval()
    shapes = {key: tuple(each.shape) for key, each in model.state_dict().items()}
    model.load_state_dict(
        {key: torch.from_numpy(tensor_of(key, shape)) for key, shape in shapes.items()}
    )
    processor = ConvNextImageProcessorPil.from_dict(dict(form))
    images = [image_of(f"image of {name} {n}", *size) for n, size in enumerate(SIZES)]
    pixels = [processor(each, return_tensors="pt")["pixel_values"] for each in images]
    with torch.no_grad():
        logits = [model(each).logits[0].numpy() for each in pixels]
        vectors = [model.resnet(each).pooler_output[0, :, 0, 0].numpy() for each in pixels]
    common.write_json(into / name / "config.json", config)
    common.write_json(into / name / "preprocessor_config.json", form)
    common.write_case(
        into / name,
        shapes,
        common.how("images", name, "float32"),
        **{f"image_{n}": each for n, each in enumerate(images)},
        pixels=thinned(pixels[0][0].numpy()),
        logits=np.stack(logits),
        vectors=np.stack(vectors),
    )
