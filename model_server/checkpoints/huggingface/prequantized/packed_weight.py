"""One quantised weight of a Hugging Face folder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from model_server.checkpoints.huggingface.safetensors_tensors import StoredTensors
from model_server.checkpoints.packed import PackedBlocks, Packing
from sax.errors import CheckpointError


class PackedWeight(ABC):
    """One weight [out, in] made of several stored tensors, or all experts', [E, out, in]."""

    shape: tuple[int, ...]
    packing: Packing | None  # None: the columns that share a scale are no blocks of a row
    parts: tuple[str, ...] = ()  # stored tensors whose names do not follow from the weight's

    @property
    def step(self) -> int:
        """Columns that are read together: those of a block, or one."""
        return 1 if self.packing is None else self.packing.block or self.shape[-1]

    @abstractmethod
    def read(self, stored: StoredTensors, *region: slice) -> PackedBlocks:
        """Read a region of whole steps. Without a packing, each column is a block."""


def matrix_shape(stored: StoredTensors, name: str) -> tuple[int, int]:
    """Return [rows, columns] as stored. Raises CheckpointError for anything but a matrix."""
    shape = stored.shape(name)
    if len(shape) != 2 or not all(shape):
        raise CheckpointError(f"tensor {name} is {list(shape)}; quantised weights must be matrices")
    return shape[0], shape[1]


def check_shape(stored: StoredTensors, name: str, wanted: Sequence[int], why: str) -> None:
    """Raise CheckpointError, with both shapes, unless a tensor is as `why` says."""
    if stored.shape(name) != tuple(wanted):
        raise CheckpointError(
            f"tensor {name} is {list(stored.shape(name))}; it must be {list(wanted)} {why}: fetch "
            "the checkpoint again, or use another quantisation of the model"
        )
