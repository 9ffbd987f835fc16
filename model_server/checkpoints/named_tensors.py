"""Tensors by name without a configuration: arrays of this process, or a safetensors file, also one
in shared memory. They replace weights of a model that is loaded already."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from model_server.checkpoints.checkpoint import ARRAYS
from model_server.checkpoints.huggingface.safetensors_header import DTYPES
from model_server.checkpoints.huggingface.safetensors_tensors import StoredTensors
from model_server.checkpoints.packed import PackedBlocks, Packing
from model_server.checkpoints.region import Region, deliver, whole
from model_server.text.chat_template import ChatTemplate
from model_server.text.tokenizer import HfTokenizer
from sax.errors import CheckpointError

_SHARED = Path("/dev/shm")
_SHARED_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")
_FLOATS = {str(dtype) for dtype in DTYPES.values()}


class TensorsByName(Protocol):
    """Named tensors of a file, of shared memory, or of this process."""

    format: str  # safetensors, or ARRAYS

    @property
    def dtypes(self) -> Mapping[str, str]:
        """numpy's name of the dtype of each tensor."""
        ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(
        self, name: str, region: Region | None = None, out: np.ndarray | None = None
    ) -> np.ndarray: ...

    def close(self) -> None: ...


class GivenArrays:
    """Arrays of numpy or jax, which nobody may change while they are read."""

    format = ARRAYS

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self._arrays = arrays
        self.dtypes = {name: str(array.dtype) for name, array in arrays.items()}

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._arrays[name].shape)

    def read(
        self, name: str, region: Region | None = None, out: np.ndarray | None = None
    ) -> np.ndarray:
        found = np.asarray(self._arrays[name])
        return deliver(found[region or whole(found.shape)], out)

    def close(self) -> None:
        """Keeps nothing open."""


class SingleTensorFile:
    """A safetensors file."""

    format = "safetensors"

    def __init__(self, path: Path) -> None:
        """Raises CheckpointError, also for a file that ends too early."""
        self._stored = StoredTensors(path.parent, one_file=path.name)
        self.dtypes = {
            name: str(DTYPES.get(dtype, dtype)) for name, dtype in self._stored.dtypes.items()
        }
        self.shape, self.read, self.close = (
            self._stored.shape,
            self._stored.read,
            self._stored.close,
        )


def shared_memory(name: str) -> Path:
    """Return the file of a shared memory object. Raises CheckpointError."""
    if not _SHARED_NAME.fullmatch(name):
        raise CheckpointError(
            f"shm:{name[:80]} names no shared memory: give letters, digits, dots and dashes"
        )
    path = _SHARED / name
    if path.is_symlink() or not path.is_file():
        raise CheckpointError(f"there is no shared memory {name} on this machine")
    return path


class NamedTensors:
    """A `Checkpoint` of named tensors alone, in Hugging Face's names and layouts."""

    folder: Path | None = None

    def __init__(self, stored: TensorsByName) -> None:
        """Raises CheckpointError naming a tensor of another dtype than a float."""
        self.config: dict[str, Any] = {}
        self.generation_config: dict[str, Any] = {}
        self._stored = stored
        self.format = stored.format
        for name, dtype in stored.dtypes.items():
            if dtype not in _FLOATS:
                raise CheckpointError(
                    f"tensor {name} is {dtype}: weights are {', '.join(sorted(_FLOATS))}, and are "
                    "quantised here as the model was published"
                )

    def names(self) -> list[str]:
        return list(self._stored.dtypes)

    def shape(self, name: str) -> tuple[int, ...]:
        self._check(name)
        return self._stored.shape(name)

    def dtype(self, name: str) -> str:
        self._check(name)
        return self._stored.dtypes[name]

    def nbytes(self, name: str) -> int:
        return math.prod(self.shape(name)) * (4 if self.dtype(name) == "float32" else 2)

    def read(
        self, name: str, region: Region | None = None, out: np.ndarray | None = None
    ) -> np.ndarray:
        self._check(name)
        return self._stored.read(name, region, out)

    def packing(self, name: str) -> Packing | None:
        return None

    def read_packed(self, name: str, region: Region | None = None) -> PackedBlocks:
        raise CheckpointError(f"tensor {name} is not stored in blocks")

    def tokenizer(self) -> HfTokenizer:
        raise CheckpointError("named tensors have no tokenizer")

    def chat_template(self) -> ChatTemplate | None:
        return None

    def close(self) -> None:
        self._stored.close()

    def _check(self, name: str) -> None:
        if name not in self._stored.dtypes:
            raise CheckpointError(f"tensor {name} was not given")
