"""Writes the checkpoint of a case of kind `voices` of tests.tools.golden."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.tools.golden.voices import HERE, tensor_of


def tensors_of(name: str) -> dict[str, np.ndarray]:
    shapes = json.loads((HERE / name / "tensors.json").read_text())
    return {key: tensor_of(key, tuple(shape)) for key, shape in shapes.items()}


def write_case(name: str, folder: Path) -> Path:
    folder.mkdir()
    save_file(tensors_of(name), folder / "model.safetensors")
    for file in ("config.json", "vocab.json", "tokenizer_config.json"):
        shutil.copy(HERE / name / file, folder / file)
    return folder
