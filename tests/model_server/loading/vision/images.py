"""Golden images: loaded models of them, and what transformers computes."""

from __future__ import annotations

import json
import shutil
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from safetensors.numpy import save_file

from model_server.loading.loader import ModelLoader
from model_server.loading.vision.loaded_vision import LoadedVision
from model_server.sharing.images.worker import prepared
from tests.model_server.loading.loads import quiet, spec_of
from tests.tools.golden.images import HERE, tensor_of


def write_case(name: str, folder: Path) -> Path:
    folder.mkdir()
    shapes = json.loads((HERE / name / "tensors.json").read_text())
    tensors = {key: tensor_of(key, tuple(shape)) for key, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    for file in ("config.json", "preprocessor_config.json"):
        shutil.copy(HERE / name / file, folder / file)
    return folder


def golden_of(name: str) -> dict[str, np.ndarray]:
    with np.load(HERE / name / "golden.npz") as file:
        return dict(file)


def load(loader: ModelLoader, checkpoint: Path | str, path: str = "auto", **values: Any) -> Any:
    overrides = {key: json.dumps(value) for key, value in values.items()}
    return loader(spec_of(checkpoint, path, **overrides), quiet)


def pixels_of(image: np.ndarray, loaded: LoadedVision) -> np.ndarray:
    """u8[S, S, 3] of an image that is sent without a loss."""
    file, side = BytesIO(), loaded.form.size
    Image.fromarray(image).save(file, "PNG")
    found = prepared(file.getvalue(), loaded.form)
    return np.frombuffer(found.pixels, np.uint8).reshape(side, side, 3)


def logprobs(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))
