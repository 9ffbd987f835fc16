"""Reads the header of a .safetensors file: its tensors and their locations.

The `safetensors` package has a reader too, but it maps the whole file, and its error for a short
file names neither tensor nor bytes. Layout: u64 length, JSON header, tensor data without gaps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from model_server.checkpoints.files import MOST_JSON, parse_json
from model_server.checkpoints.tensor_file import TensorFile
from sax.errors import CheckpointError

MAX_HEADER = MOST_JSON  # a third of the format's own limit; a thousand times a usual header
_MAX_DIMENSIONS = 16
DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),  # read as float32
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}

# Takes an error in a weight file. A load raises it; `sax inspect` collects it and goes on, so code
# that calls a handler must be able to continue when it returns.
ErrorHandler = Callable[[CheckpointError], None]


def raise_error(error: CheckpointError) -> None:
    """`ErrorHandler` for loads: fail on the first error."""
    raise error


@dataclass(frozen=True, slots=True)
class StoredTensor:
    file: TensorFile
    shape: tuple[int, ...]
    dtype: str  # the format's name: F32, BF16, I64, ...
    offset: int  # from the start of the file
    nbytes: int


def read_header(file: TensorFile, on_error: ErrorHandler = raise_error) -> dict[str, StoredTensor]:
    """Read the header. Raises CheckpointError if it is invalid.

    Passes an error to `on_error` if the file ends before its last tensor does.
    """
    length = int.from_bytes(file.read(0, 8, "its header's length").tobytes(), "little")
    if length > MAX_HEADER:
        raise file.damaged(f"it announces a header of {length} bytes; at most {MAX_HEADER}")
    text = file.read(8, length, "its header").tobytes()
    try:
        header = parse_json(text.decode(), unique=True)
    except (ValueError, RecursionError) as exc:
        raise file.damaged(f"its header cannot be read: {exc}") from exc
    if not isinstance(header, dict):
        raise file.damaged("its header is not a JSON object")
    header.pop("__metadata__", None)
    tensors = {name: _stored(file, name, entry, 8 + length) for name, entry in header.items()}
    _check_apart(file, tensors)
    _check_end(file, tensors, on_error)
    return tensors


def _check_apart(file: TensorFile, tensors: Mapping[str, StoredTensor]) -> None:
    """Raise CheckpointError if a tensor has bytes of another one."""
    filled = [name for name in tensors if tensors[name].nbytes]
    in_order = sorted(filled, key=lambda name: tensors[name].offset)
    for name, following in itertools.pairwise(in_order):
        if tensors[name].offset + tensors[name].nbytes > tensors[following].offset:
            raise file.damaged(f"tensors {name!r} and {following!r} share bytes")


def _check_end(
    file: TensorFile, tensors: Mapping[str, StoredTensor], on_error: ErrorHandler
) -> None:
    if not tensors:
        return
    name = max(tensors, key=lambda name: tensors[name].offset + tensors[name].nbytes)
    end = tensors[name].offset + tensors[name].nbytes
    if end > file.size:
        on_error(file.truncated(end, f"tensor {name!r} ({tensors[name].nbytes} bytes)"))


def _stored(file: TensorFile, name: str, entry: Any, data_start: int) -> StoredTensor:
    try:
        dtype, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise file.damaged(f"its header's entry for {name!r} is {str(entry)[:200]}") from None
    short = isinstance(shape, list) and len(shape) <= _MAX_DIMENSIONS
    numbers = [start, end, *shape] if short else [None]
    if not isinstance(dtype, str) or not all(type(n) is int and n >= 0 for n in numbers):
        raise file.damaged(f"its header's entry for {name!r} is {str(entry)[:200]}")
    nbytes = end - start
    expected = math.prod(shape) * DTYPES[dtype].itemsize if dtype in DTYPES else nbytes
    if nbytes < 0 or nbytes != expected:
        raise file.damaged(f"tensor {name!r} is {dtype} {shape}, yet has {nbytes} bytes")
    return StoredTensor(file, tuple(shape), dtype, data_start + start, nbytes)
