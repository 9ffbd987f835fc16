"""Dense modules of a sentence-transformers folder: layers over the pooled vector of a text.

Each has a folder with config.json and its weights, as EmbeddingGemma's 2_Dense and 3_Dense.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from model_server.checkpoints.files import read_json
from model_server.checkpoints.huggingface.safetensors_tensors import WEIGHT_FILES, StoredTensors
from model_server.checkpoints.region import Region
from sax.errors import CheckpointError

DENSE_CONFIG, DENSE_WEIGHTS = "config.json", WEIGHT_FILES[0]
_INPUT = "sentence_embedding"
# Keys that change nothing at these values; null counts as absent.
_AT_REST = {
    "module_input_name": _INPUT,
    "module_output_name": _INPUT,
    "use_residual": False,
}
_COMPUTED = ("in_features", "out_features", "bias", "activation_function")
_TORCH = "torch.nn.modules."
_ACTIVATIONS = {
    f"{_TORCH}linear.Identity": "identity",
    **{
        f"{_TORCH}activation.{name}": name.lower()
        for name in ("Tanh", "ReLU", "GELU", "SiLU", "Sigmoid")
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseModule:
    """activation(x W + b)."""

    folder: str  # in the checkpoint
    inputs: int
    outputs: int
    biased: bool
    activation: str  # identity, tanh, relu, gelu, silu or sigmoid


def read_dense_module(folder: Path, inner: PurePosixPath) -> DenseModule:
    """Read the module in `inner`, a folder below `folder`. Raises CheckpointError."""
    path = folder / inner / DENSE_CONFIG
    config = read_json(path)
    for key, value in config.items():
        if value is not None and key not in _COMPUTED and _AT_REST.get(key, key) != value:
            raise CheckpointError(f"{path} has {key} = {value!r}, which is not computed")
    sizes = [config.get(key) for key in _COMPUTED[:2]]
    inputs, outputs = (size if type(size) is int and size > 0 else 0 for size in sizes)
    if not inputs or not outputs:
        raise CheckpointError(f"{path} has no sizes in_features and out_features: {sizes}")
    activation = config.get("activation_function", f"{_TORCH}activation.Tanh")
    return DenseModule(
        folder=str(inner),
        inputs=inputs,
        outputs=outputs,
        biased=config.get("bias", True) is True,
        activation=_activation(path, activation),
    )


def _activation(path: Path, given: Any) -> str:
    if not isinstance(given, str) or given not in _ACTIVATIONS:
        raise CheckpointError(
            f"{path} has activation_function = {given!r}; supported are {', '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[given]


def weight_name(module: DenseModule, part: str) -> str:
    """Return the name of a module's weight or bias among the tensors of all."""
    return f"{module.folder}/linear.{part}"


class DenseTensors:
    """The tensors of several modules, under the names that `weight_name` gives."""

    def __init__(self, stored: dict[str, StoredTensors]) -> None:
        self._stored = stored

    def shape(self, name: str) -> tuple[int, ...]:
        folder, _, own = name.rpartition("/")
        return self._stored[folder].shape(own)

    def read(
        self, name: str, region: Region | None = None, out: np.ndarray | None = None
    ) -> np.ndarray:
        folder, _, own = name.rpartition("/")
        return self._stored[folder].read(own, region, out)


@contextmanager
def open_dense(folder: Path, modules: Sequence[DenseModule]) -> Iterator[DenseTensors]:
    """Open the weight files of these modules. Raises CheckpointError."""
    stored: dict[str, StoredTensors] = {}
    try:
        for module in modules:
            stored[module.folder] = StoredTensors(folder / module.folder)
        yield DenseTensors(stored)
    finally:
        for tensors in stored.values():
            tensors.close()
