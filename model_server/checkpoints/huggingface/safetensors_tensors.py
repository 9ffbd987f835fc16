"""Reads the stored tensors of a Hugging Face folder: one file, or shards and their index.

`prequantized` combines the stored tensors of one quantised weight.
"""

from __future__ import annotations

import logging
import math
import resource
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from model_server.checkpoints.files import read_json
from model_server.checkpoints.huggingface.safetensors_header import (
    DTYPES,
    ErrorHandler,
    StoredTensor,
    raise_error,
    read_header,
)
from model_server.checkpoints.packed import FLOAT8
from model_server.checkpoints.region import Region, deliver, explicit, whole
from model_server.checkpoints.tensor_file import TensorFile
from sax.errors import CheckpointError

logger = logging.getLogger(__name__)

_ONE_FILE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
WEIGHT_FILES = (_ONE_FILE, _INDEX)
_DTYPES: dict[str, np.dtype[Any]] = {
    **DTYPES,
    "F64": np.dtype(np.float64),
    "F8_E4M3": FLOAT8,
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
_MOST_SHARDS = 10_000
_BAND = 2**20  # bytes per read where data must be cut or converted; fits a core's cache


@dataclass(frozen=True, slots=True)
class _RowReader:
    """Row access to one stored tensor; a scalar is one row."""

    tensor: StoredTensor
    dtype: np.dtype[Any]
    what: str  # for errors

    @property
    def height(self) -> int:
        """Rows per band."""
        return max(1, _BAND // max(self._nbytes, 1))

    def lies_as(self, out: np.ndarray) -> bool:
        """True if the file's bytes can be read straight into `out`."""
        return out.dtype == self.dtype and out.flags.c_contiguous

    def read(self, rows: slice) -> np.ndarray:
        count = rows.stop - rows.start
        raw = self.tensor.file.read(self._offset(rows.start), count * self._nbytes, self.what)
        return raw.view(self.dtype).reshape(count, *self.tensor.shape[1:])

    def fill(self, out: np.ndarray, start: int) -> np.ndarray:
        return self.tensor.file.fill(out, self._offset(start), self.what)

    @property
    def _nbytes(self) -> int:
        return self.tensor.nbytes // max(math.prod(self.tensor.shape[:1]), 1)

    def _offset(self, row: int) -> int:
        return self.tensor.offset + row * self._nbytes


class StoredTensors:
    """The open weight files of a folder. Reading is thread-safe."""

    def __init__(
        self, folder: Path, on_error: ErrorHandler = raise_error, *, one_file: str = _ONE_FILE
    ) -> None:
        """Passes each broken file to `on_error`; raises CheckpointError if there are no files.

        one_file: the name of a file that has no shards.
        """
        self._folder = folder
        self._one_file = one_file
        self._on_error = on_error
        self._files: list[TensorFile] = []
        try:
            self._tensors = self._open_tensors()
        except BaseException:
            self.close()
            raise

    @property
    def dtypes(self) -> dict[str, str]:
        """The safetensors dtype (F32, BF16, I64, ...) of every tensor, in file order."""
        return {name: tensor.dtype for name, tensor in self._tensors.items()}

    def shape(self, name: str) -> tuple[int, ...]:
        return self.find(name).shape

    def nbytes(self, name: str) -> int:
        return self.find(name).nbytes

    def read(
        self, name: str, region: Region | None = None, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Read a tensor or a region of it, into `out` if given; reads only the region's rows."""
        tensor = self.find(name)
        stored = _RowReader(tensor, self._dtype(name, tensor), f"tensor {name!r}")
        if not tensor.shape:
            return deliver(stored.read(slice(0, 1)).reshape(()), out)
        rows, *rest = explicit(region or (), tensor.shape)
        if out is None:
            return stored.read(rows)[:, *rest]
        if tuple(rest) == whole(tensor.shape[1:]) and stored.lies_as(out):
            return stored.fill(out, rows.start)
        for start in range(rows.start, rows.stop, stored.height):
            stop = min(start + stored.height, rows.stop)
            band = stored.read(slice(start, stop))[:, *rest]
            out[start - rows.start : stop - rows.start] = band
        return out

    def find(self, name: str) -> StoredTensor:
        try:
            return self._tensors[name]
        except KeyError:
            raise CheckpointError(f"{self._folder} has no tensor {name}") from None

    def close(self) -> None:
        for file in self._files:
            file.close()

    def _dtype(self, name: str, tensor: StoredTensor) -> np.dtype[Any]:
        if tensor.dtype not in _DTYPES:
            raise CheckpointError(
                f"tensor {name} in {tensor.file.path} is stored as {tensor.dtype}; "
                f"supported are {', '.join(_DTYPES)}"
            )
        return _DTYPES[tensor.dtype]

    def _open_tensors(self) -> dict[str, StoredTensor]:
        if (self._folder / self._one_file).exists():
            return self._open_file(self._one_file)
        if (self._folder / _INDEX).exists():
            return self._open_shards()
        raise CheckpointError(f"{self._folder} holds neither {self._one_file} nor {_INDEX}")

    def _open_file(self, name: str) -> dict[str, StoredTensor]:
        try:
            file = TensorFile(self._folder / name)
            self._files.append(file)
            return read_header(file, self._on_error)
        except CheckpointError as exc:
            self._on_error(exc)
            return {}

    def _open_shards(self) -> dict[str, StoredTensor]:
        path = self._folder / _INDEX
        shard_of = read_json(path).get("weight_map")
        if not isinstance(shard_of, dict) or not all(map(_is_file_name, shard_of.values())):
            raise CheckpointError(f"{path} has no weight_map of tensor names to file names")
        shards = sorted(set(shard_of.values()))
        if len(shards) > (most := _most_shards()):
            raise CheckpointError(
                f"{path} names {len(shards)} files; at most {most} are opened here, half of what "
                "this process may have open (ulimit -n)"
            )
        tensors: dict[str, StoredTensor] = {}
        whole = True
        for shard in shards:
            found = self._open_file(shard)
            whole = whole and bool(found)
            self._check_apart(shard, tensors, found)
            tensors |= found
        if whole and (missing := sorted(set(shard_of) - set(tensors))):
            # As in transformers; a model that needs one of them is refused by its name.
            logger.warning(
                "the files beside %s lack %d tensors that it lists, the first is %s of %s",
                path,
                len(missing),
                missing[0],
                shard_of[missing[0]],
            )
        return tensors

    def _check_apart(self, shard: str, others: Collection[str], found: Collection[str]) -> None:
        """As in transformers, a tensor counts wherever it lies; but it may lie only once."""
        if twice := sorted(set(found) & set(others)):
            text = (
                f"{self._folder / shard} has {len(twice)} tensors that another file has, too, the "
                f"first is {twice[0]}: the files belong to different checkpoints"
            )
            self._on_error(CheckpointError(text))


def _most_shards() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_SHARDS if soft == resource.RLIM_INFINITY else min(_MOST_SHARDS, soft // 2)


def _is_file_name(text: Any) -> bool:
    return isinstance(text, str) and text.endswith(".safetensors") and "/" not in text
