"""Reads arrays that lie uncompressed in the files of an OCDBT database on this machine.

tensorstore reads a whole chunk into memory that is new from the system, and copies what is wanted
of it: more work than all else that new weights need, and to open an array takes longer than to read
a small one. It says where each value lies, so that metadata and numbers are read straight from
there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import tensorstore as ts

from model_server.checkpoints.files import parse_json
from model_server.checkpoints.orbax.folder import Folder
from model_server.checkpoints.region import Region, deliver, explicit, region_shape
from model_server.checkpoints.tensor_file import TensorFile
from sax.errors import CheckpointError

_BAND = 2**20  # bytes read at once where columns are cut; fits a core's cache
_DEEPEST = 32  # nodes of OCDBT's tree below each other
_OPEN = 8  # files at a time
_METADATA, _LARGEST_METADATA = ".zarray", 1 << 16  # bytes
_LARGEST_CHUNK = 1 << 28  # bytes; tensorstore's reader refuses more of a smaller array
_STORED_AS = {
    "<f4": np.dtype(np.float32),
    "<f2": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


class ValuePlace(NamedTuple):
    """The file of a value of the database, and its bytes there."""

    path: str
    offset: int
    size: int


Value = ValuePlace | bytes  # small ones lie in the database's tree


def arrays_in_files(folder: Folder, names: Iterable[str]) -> dict[str, UncompressedArray]:
    """Return the arrays of a database that are read without tensorstore, by name; none if it is in
    a bucket or damaged, of which tensorstore tells more."""
    if not folder.is_local:
        return {}
    files = lru_cache(_OPEN)(lambda path: TensorFile(Path(path)))  # closed as they are dropped
    try:
        base = ts.KvStore.open(folder.spec()).result()
        newest = ts.ocdbt.dump(base).result()["versions"][-1]
        values = dict(_values(base, folder.path, newest["root"]["location"], b"", _DEEPEST))
        found = {name: _uncompressed(name, values, files) for name in names}
    except (CheckpointError, ValueError, OSError, LookupError, TypeError, RecursionError):
        return {}
    return {name: array for name, array in found.items() if array is not None}


def _values(
    base: Any, folder: Path, node: str, prefix: bytes, depth: int
) -> Iterator[tuple[str, Value]]:
    for entry in ts.ocdbt.dump(base, node).result()["entries"] if depth else ():
        if (inner := entry.get("location")) is not None:
            below = prefix + entry["subtree_common_prefix"]
            yield from _values(base, folder, inner, below, depth - 1)
        elif value := entry.get("inline_value") or _place(folder, entry.get("indirect_value", "")):
            yield (prefix + entry["key"]).decode(), value


def _place(folder: Path, value: str) -> ValuePlace | None:
    """Read `value:BASE:FILE:OFFSET:SIZE`; None for what lies in no file below the folder."""
    kind, _, rest = value.partition(":")
    base, _, rest = rest.partition(":")
    name, *numbers = rest.rsplit(":", 2)
    path = base + name
    if kind != "value" or len(numbers) != 2 or "%" in path or ".." in path.split("/"):
        return None
    return ValuePlace(f"{folder}/{path}", *map(int, numbers))


@dataclass(frozen=True, slots=True)
class UncompressedArray:
    """An array whose chunks lie in files number by number, row after row."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk: tuple[int, ...]
    values: Mapping[tuple[int, ...], Value]  # by the chunk's number along each dimension
    files: Callable[[str], TensorFile]  # by path

    def read(self, region: Region | None, out: np.ndarray | None) -> np.ndarray:
        """Read a region. Raises OSError for a file that is missing or ends too early."""
        wanted = explicit(region or (), self.shape)
        if any(part.step not in (None, 1) for part in wanted):
            every = tuple(slice(None, None, part.step) for part in wanted)
            full = tuple(slice(part.start, part.stop) for part in wanted)
            return deliver(self.read(full, None)[every], out)
        made = np.empty(region_shape(wanted), self.dtype) if out is None else out
        numbers = (
            range(part.start // size, -(-part.stop // size))
            for part, size in zip(wanted, self.chunk, strict=True)
        )
        try:
            for number in itertools.product(*numbers):
                self._read_chunk(number, wanted, made)
        except CheckpointError as exc:
            raise OSError(exc.text) from exc
        return made

    def _read_chunk(self, number: tuple[int, ...], wanted: Region, out: np.ndarray) -> None:
        """Put what a region has of a chunk into its place."""
        inside, into = _overlap(number, self.chunk, wanted)
        value, place = self.values[number], out[into]
        if isinstance(value, bytes):
            place[...] = np.frombuffer(value, self.dtype).reshape(self.chunk)[inside]
            return
        rows, *columns = inside
        row = math.prod(self.chunk[1:])
        file, at = self.files(value.path), value.offset + rows.start * row * self.dtype.itemsize
        whole = region_shape(tuple(columns)) == self.chunk[1:]
        if whole and place.flags.c_contiguous and place.dtype == self.dtype:
            file.fill(place, at, "a chunk")
            return
        step = max(_BAND // max(row * self.dtype.itemsize, 1), 1)
        for first in range(0, len(place), step):
            band = place[first : first + step]
            size = len(band) * row * self.dtype.itemsize
            raw = file.read(at + first * row * self.dtype.itemsize, size, "a chunk")
            stored = raw.view(self.dtype).reshape(len(band), *self.chunk[1:])
            band[...] = stored[(slice(None), *columns)]


def _overlap(
    number: tuple[int, ...], chunk: tuple[int, ...], wanted: Region
) -> tuple[Region, Region]:
    """Return what a region has of a chunk: within the chunk, and within the region."""
    starts = [at * size for at, size in zip(number, chunk, strict=True)]
    parts = [
        (max(part.start, start), min(part.stop, start + size))
        for part, start, size in zip(wanted, starts, chunk, strict=True)
    ]
    inside = tuple(slice(a - start, b - start) for (a, b), start in zip(parts, starts, strict=True))
    into = tuple(slice(a - w.start, b - w.start) for (a, b), w in zip(parts, wanted, strict=True))
    return inside, into


def _uncompressed(
    name: str, values: Mapping[str, Value], files: Callable[[str], TensorFile]
) -> UncompressedArray | None:
    """Return an array of zarr 2; None if tensorstore has to read it."""
    if (told := values.get(f"{name}/{_METADATA}")) is None:
        return None
    stored = parse_json(_content(told, files).decode())
    shape, chunk = (tuple(stored[key]) for key in ("shape", "chunks"))
    dtype, joint = _STORED_AS.get(str(stored["dtype"])), stored.get("dimension_separator") or "."
    plain = stored["compressor"] is None and not stored.get("filters") and stored["order"] == "C"
    if dtype is None or not plain or not shape or len(chunk) != len(shape):
        return None
    if any(type(size) is not int or size < 1 for size in (*shape, *chunk)):
        return None
    size = math.prod(chunk) * dtype.itemsize
    if size > max(_LARGEST_CHUNK, 4 * math.prod(shape) * dtype.itemsize):
        return None
    counts = [-(-size // each) for size, each in zip(shape, chunk, strict=True)]
    if math.prod(counts) > len(values):
        return None  # chunks of zeros are not stored
    numbers = itertools.product(*map(range, counts))
    found = {at: values.get(f"{name}/{joint.join(map(str, at))}") for at in numbers}
    there = {at: value for at, value in found.items() if value and _size(value) == size}
    if len(there) < len(found):
        return None
    return UncompressedArray(shape, dtype, chunk, there, files)


def _content(value: Value, files: Callable[[str], TensorFile]) -> bytes:
    if isinstance(value, bytes):
        return value
    size = min(value.size, _LARGEST_METADATA)
    return files(value.path).read(value.offset, size, _METADATA).tobytes()


def _size(value: Value) -> int:
    return len(value) if isinstance(value, bytes) else value.size
