"""One quantised weight of a Hugging Face folder."""

from __future__ import annotations

from abc import ABC, abstractmethod

from model_server.checkpoints.huggingface.safetensors_tensors import StoredTensors
from model_server.checkpoints.packed import PackedBlocks, Packing


class PackedWeight(ABC):
    """One weight [out, in] made of several stored tensors, or all experts', [E, out, in]."""

    shape: tuple[int, ...]
    packing: Packing
    parts: tuple[str, ...] = ()  # stored tensors whose names do not follow from the weight's

    @abstractmethod
    def read(self, stored: StoredTensors, *region: slice) -> PackedBlocks:
        """Read a region; its columns must be whole blocks."""
