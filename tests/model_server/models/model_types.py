"""Every model type that transformers registers, as a small checkpoint of random weights.

See tools/golden/model_types.py: config.json of every type, and the reference's output for those
that run on tokens alone.
"""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.golden.random_tensor import random_tensor

_PLACE = Path(__file__).parents[2] / "golden" / "model_types"


@functools.cache
def configs() -> Mapping[str, dict[str, Any]]:
    """config.json by model_type."""
    return _unpacked("configs")


def prompt() -> np.ndarray:
    return _outputs()["prompt"]


def output_of(model_type: str, kind: str) -> np.ndarray | None:
    """The reference's `logits` f32[S, V] or `hidden` f32[S, D]; None if it has no such output."""
    return _outputs().get(f"{model_type}.{kind}")


def write_checkpoint(model_type: str, folder: Path) -> None:
    """A Hugging Face folder with the type's config and its random weights."""
    (folder / "config.json").write_text(json.dumps(configs()[model_type]))
    shapes = _unpacked("tensors").get(model_type, {})
    tensors = {name: random_tensor(name, tuple(shape)) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


@functools.cache
def _outputs() -> Mapping[str, np.ndarray]:
    with np.load(_PLACE / "outputs.npz") as file:
        return dict(file)


@functools.cache
def _unpacked(name: str) -> dict[str, Any]:
    return json.loads(gzip.decompress((_PLACE / f"{name}.json.gz").read_bytes()))
