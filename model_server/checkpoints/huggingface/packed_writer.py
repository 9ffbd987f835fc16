"""Writes a checkpoint some of whose matrices are packed integers, as compressed-tensors does.

The format is `pack-quantized`: instead of NAME, NAME_packed i32[out, in * bits / 32], NAME_scale
[out, groups] and NAME_shape [2] (see `prequantized.methods`). Other tensors are written as they
are read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.huggingface.prequantized.words import pack_words, words_of

_FORMAT = "pack-quantized"


@dataclass(frozen=True, slots=True)
class PackedForm:
    bits: int  # 4 or 8
    group: int | None  # columns that share a scale; None: the whole row
    dtype: str  # of the scales, and of matrices that are not packed


@dataclass(slots=True)
class PackedTensors:
    """Tensors of a folder: a checkpoint's, of which some are packed. Those wait on the disk."""

    checkpoint: Checkpoint
    form: PackedForm
    folder: Path  # of what waits; it must exist
    shapes: dict[str, tuple[int, int]] = field(default_factory=dict)  # of the packed, by name
    _files: dict[str, Path] = field(default_factory=dict)  # by stored name

    def put(self, name: str, codes: np.ndarray, scales: np.ndarray) -> None:
        """Take one matrix: codes i8[out, in], scales f32[out, groups] that the dtype holds."""
        half = 1 << (self.form.bits - 1)
        self.shapes[name] = (codes.shape[0], codes.shape[1])
        unsigned = (codes.astype(np.int16) + half).astype(np.uint8)
        for part, numbers in (("packed", pack_words(unsigned, self.form.bits)), ("scale", scales)):
            path = self.folder / f"{len(self._files)}.npy"
            np.save(path, numbers)
            self._files[f"{name}_{part}"] = path

    def dtypes(self) -> dict[str, str]:
        """Return the stored names, in file order, with their number formats."""
        found: dict[str, str] = {}
        for name in self.checkpoint.names():
            if name in self.shapes:
                found[f"{name}_packed"] = "int32"
                found[f"{name}_scale"] = self.form.dtype
                found[f"{name}_shape"] = "int64"
            else:
                # Vectors are small, and some decide between experts.
                matrix = len(self.checkpoint.shape(name)) > 1
                found[name] = self.form.dtype if matrix else self.checkpoint.dtype(name)
        return found

    def shape(self, name: str) -> tuple[int, ...]:
        whole, _, part = name.rpartition("_")
        if whole not in self.shapes or part not in ("packed", "scale", "shape"):
            return self.checkpoint.shape(name)
        rows, columns = self.shapes[whole]
        if part == "packed":
            return rows, words_of(columns, self.form.bits)
        return (rows, columns // (self.form.group or columns)) if part == "scale" else (2,)

    def read(self, name: str) -> np.ndarray:
        if name in self._files:
            return np.load(self._files[name], mmap_mode="r")
        whole, _, part = name.rpartition("_")
        if part == "shape" and whole in self.shapes:
            return np.asarray(self.shapes[whole], np.int64)
        return self.checkpoint.read(name)


def quantization_config(form: PackedForm, left: Collection[str]) -> Mapping[str, Any]:
    """Return what config.json says of the weights; left: modules that are not packed."""
    weights = {
        "num_bits": form.bits,
        "type": "int",
        "symmetric": True,
        "strategy": "channel" if form.group is None else "group",
        "group_size": form.group,
        "actorder": None,
        "block_structure": None,
        "dynamic": False,
        "observer": "minmax",
        "observer_kwargs": {},
    }
    group = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": None,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": _FORMAT,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": sorted(left),
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }
