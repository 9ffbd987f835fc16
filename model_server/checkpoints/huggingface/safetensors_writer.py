"""Writes a checkpoint's tensors as safetensors files, tensor by tensor.

Headers are computed from shapes alone, so only one tensor at a time is in memory.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from model_server.checkpoints.cast import cast
from model_server.checkpoints.huggingface.safetensors_header import DTYPES as STORED
from sax.types import Progress

MAX_SHARD = 5 * 10**9  # bytes, as in transformers

_INTEGERS = {"I32": np.dtype(np.int32), "I64": np.dtype(np.int64)}  # of packed weights
_STORED_NAME = {str(dtype): name for name, dtype in {**STORED, **_INTEGERS}.items()}
_SIZES = {str(dtype): dtype.itemsize for dtype in (*STORED.values(), *_INTEGERS.values())}


class TensorSource(Protocol):
    """Tensors to write, by name, such as those of an open checkpoint."""

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(self, name: str) -> np.ndarray: ...


def write_safetensors(
    source: TensorSource,
    folder: Path,
    dtypes: Mapping[str, str],
    report: Callable[[Progress], None],
    max_shard: int = MAX_SHARD,
) -> None:
    """Write every tensor of `dtypes`, which gives its number format. The folder must exist.

    No file has more than `max_shard` bytes of tensors, unless a single tensor is larger.
    """
    sizes = {name: _nbytes(source, name, dtype) for name, dtype in dtypes.items()}
    shards = _shards(sizes, max_shard)
    files = _file_names(len(shards))
    done = 0
    for file_name, names in zip(files, shards, strict=True):
        with (folder / file_name).open("xb") as file:
            file.write(_header(source, {name: dtypes[name] for name in names}))
            for name in names:
                report(Progress("writing", done, len(dtypes), "tensors"))
                # tofile writes non-contiguous arrays one number at a time.
                np.ascontiguousarray(cast(name, source.read(name), dtypes[name])).tofile(file)
                done += 1
    if len(shards) > 1:
        _write_index(folder, files, shards, sum(sizes.values()))
    report(Progress("writing", done, len(dtypes), "tensors"))


def _nbytes(source: TensorSource, name: str, dtype: str) -> int:
    return math.prod(source.shape(name)) * _SIZES[dtype]


def _shards(sizes: Mapping[str, int], limit: int) -> list[list[str]]:
    """Split names into files, in order, starting a new one where the next does not fit."""
    shards: list[list[str]] = [[]]
    room = limit
    for name, size in sizes.items():
        if size > room and shards[-1]:
            shards.append([])
            room = limit
        shards[-1].append(name)
        room -= size
    return shards


def _file_names(count: int) -> list[str]:
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]


def _write_index(
    folder: Path, files: Sequence[str], shards: Sequence[Sequence[str]], total: int
) -> None:
    places = {name: file for file, names in zip(files, shards, strict=True) for name in names}
    index = {"metadata": {"total_size": total}, "weight_map": places}
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _header(source: TensorSource, dtypes: Mapping[str, str]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, dtype in dtypes.items():
        start, end = end, end + _nbytes(source, name, dtype)
        entries[name] = {
            "dtype": _STORED_NAME[dtype],
            "shape": list(source.shape(name)),
            "data_offsets": [start, end],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # align the tensor data
    return len(text).to_bytes(8, "little") + text
