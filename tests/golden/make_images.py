"""Makes tests/golden/images/*: shrunken random image classifiers and the reference's logits.

Run by hand, in an environment with torch, transformers and Pillow, from the repository root:

    python -m tests.golden.make_images

Each folder holds config.json, preprocessor_config.json, tensors.json (name -> shape) and
golden.npz: images as they are sent, u8[H, W, 3] each; of the first one the pixels as the processor
makes them, f32[3, S, S], of a large one every eighth in both directions; of each image the logits
f32[labels] and the pooled vector f32[D]; how they were made. Weights follow from the names (see
`tensor_of`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.golden.random_tensor import random_tensor, uniform

HERE = Path(__file__).parent / "images"
SIZES = ((61, 43), (38, 97))  # height and width of the images
_RESNET: dict[str, Any] = {
    "model_type": "resnet",
    "architectures": ["ResNetForImageClassification"],
}
_FORM: dict[str, Any] = {
    "crop_pct": 0.8,
    "do_normalize": True,
    "do_resize": True,
    "image_processor_type": "ConvNextImageProcessor",
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
    "resample": 3,
    "size": {"shortest_edge": 35},
}


def _labels(*names: str) -> dict[str, str]:
    return {str(index): name for index, name in enumerate(names)}


# Name -> config.json and preprocessor_config.json.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "resnet": (
        _RESNET
        | {
            "embedding_size": 10,
            "hidden_sizes": [28, 44, 60],
            "depths": [2, 1, 3],
            "id2label": _labels("ant", "bee", "cat", "dog", "eel"),
        },
        _FORM,
    ),
    "resnet_basic": (
        _RESNET
        | {
            "layer_type": "basic",
            "embedding_size": 10,
            "hidden_sizes": [10, 14],
            "depths": [2, 1],
            "id2label": _labels("no", "yes", "perhaps"),
        },
        # As microsoft/resnet-50 has it: an old name, and a size without its edge.
        {**_FORM, "feature_extractor_type": "ConvNextFeatureExtractor", "size": 33, "resample": 2},
    ),
    "resnet_downsampling": (
        _RESNET
        | {
            "embedding_size": 6,
            "hidden_sizes": [12, 20],
            "depths": [1, 2],
            "downsample_in_first_stage": True,
            "downsample_in_bottleneck": True,
            "id2label": _labels("a", "b"),
        },
        {**_FORM, "size": {"shortest_edge": 384}},  # from here on images are squeezed, not cut
    ),
}


def image_of(name: str, height: int, width: int) -> np.ndarray:
    """u8[H, W, 3]: colours that change slowly, with some noise."""
    parts = uniform(name, 6 + height * width * 3)
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(a * 9 * x / width + b * 9 * y / height) for a, b in parts[:6].reshape(3, 2)]
    noise = parts[6:].reshape(height, width, 3)
    return (np.stack(waves, -1) * 90 + 100 + noise * 60).astype(np.uint8)


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


def make(name: str, config: Mapping[str, Any], form: Mapping[str, Any]) -> None:
    import torch
    import transformers
    from transformers.models.convnext.image_processing_pil_convnext import (
        ConvNextImageProcessorPil,
    )

    folder = HERE / name
    folder.mkdir(parents=True, exist_ok=True)
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
    versions = f"torch {torch.__version__} (CPU), transformers {transformers.__version__}"
    for file, held in (("config", config), ("preprocessor_config", form)):
        (folder / f"{file}.json").write_text(json.dumps(held, indent=2, sort_keys=True) + "\n")
    lines = [f"  {json.dumps(key)}: {json.dumps(shapes[key])}" for key in sorted(shapes)]
    (folder / "tensors.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    np.savez_compressed(
        folder / "golden.npz",
        how=np.asarray(f"python -m tests.golden.make_images; {versions}, float32"),
        **{f"image_{n}": each for n, each in enumerate(images)},  # pyright: ignore[reportArgumentType]
        pixels=thinned(pixels[0][0].numpy()),
        logits=np.stack(logits),
        vectors=np.stack(vectors),
    )


if __name__ == "__main__":
    for case, (own, processing) in CASES.items():
        make(case, own, processing)
