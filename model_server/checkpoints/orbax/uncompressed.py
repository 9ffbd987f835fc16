"""Reads arrays that lie uncompressed in the files of an OCDBT database on this machine.

tensorstore reads a whole chunk into memory that is new from the system, and copies what is wanted
of it: more work than all else that new weights need. It says where each chunk lies, so that its
bytes are read straight to their place here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorstore as ts

from model_server.checkpoints.orbax.folder import Folder
from model_server.checkpoints.region import Region, deliver, explicit, region_shape
from model_server.checkpoints.tensor_file import TensorFile
from sax.errors import CheckpointError

_BAND = 2**20  # bytes read at once where columns are cut; fits a core's cache
_DEEPEST = 32  # nodes of OCDBT's tree below each other


class ValuePlace(NamedTuple):
    """The file of a value of the database, and its bytes there."""

    path: str
    offset: int
    size: int


def find_values(folder: Folder) -> dict[str, ValuePlace]:
    """Return the places of the values of a database, by key; nothing if it cannot be told, as of
    one in a bucket."""
    if not folder.is_local:
        return {}
    try:
        base = ts.KvStore.open(folder.spec()).result()
        newest = ts.ocdbt.dump(base).result()["versions"][-1]
        return dict(_values(base, folder.path, newest["root"]["location"], b"", _DEEPEST))
    except (ValueError, OSError, LookupError, TypeError):
        return {}  # reading through tensorstore says what is damaged


def _values(
    base: Any, folder: Path, node: str, prefix: bytes, depth: int
) -> Iterator[tuple[str, ValuePlace]]:
    for entry in ts.ocdbt.dump(base, node).result()["entries"] if depth else ():
        if (inner := entry.get("location")) is not None:
            below = prefix + entry["subtree_common_prefix"]
            yield from _values(base, folder, inner, below, depth - 1)
        elif place := _place(folder, entry.get("indirect_value", "")):
            yield (prefix + entry["key"]).decode(), place


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
    places: Mapping[tuple[int, ...], ValuePlace]  # by the chunk's number along each dimension

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
        path, start, _ = self.places[number]
        rows, *columns = inside
        row = math.prod(self.chunk[1:])
        with closing(TensorFile(Path(path))) as file:
            place, at = out[into], start + rows.start * row * self.dtype.itemsize
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


def uncompressed(
    array: Any, name: str, values: Mapping[str, ValuePlace]
) -> UncompressedArray | None:
    """Return an array of tensorstore's as one that is read without it; None if it cannot be.

    name: its name in the database. values: all places of the database.
    """
    if not array.shape or array.codec is None or not values:
        return None
    spec = array.spec().to_json()
    stored, dtype = spec.get("metadata", {}), array.dtype.numpy_dtype
    same = stored.get("dtype") in (array.dtype.name, dtype.newbyteorder("<").str)
    plain = stored.get("compressor") is None and not stored.get("filters")
    if spec["driver"] != "zarr" or not (same and plain) or stored.get("order") != "C":
        return None
    chunk, joint = tuple(stored["chunks"]), stored.get("dimension_separator", ".")
    counts = (range(-(-size // each)) for size, each in zip(array.shape, chunk, strict=True))
    numbers = list(itertools.product(*counts))
    places = {at: values.get(f"{name}/{joint.join(map(str, at))}") for at in numbers}
    size = math.prod(chunk) * dtype.itemsize
    found = {at: place for at, place in places.items() if place and place.size == size}
    if len(found) != len(numbers):
        return None  # chunks of zeros are not stored
    return UncompressedArray(tuple(array.shape), dtype, chunk, found)
