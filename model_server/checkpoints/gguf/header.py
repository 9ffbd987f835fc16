"""Reads the header of a GGUF file (v2 and v3, little-endian): metadata and tensor locations.

The `gguf` package has a reader too, but it trusts every length in the file: one flipped byte in an
array's count makes it loop forever. It also takes 1.8 s and 160 MB for a 49 k vocabulary (0.1-0.4 s
and 11 MB here). Its constants are used.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf.constants import (
    GGML_QUANT_SIZES,
    GGUF_DEFAULT_ALIGNMENT,
    GGMLQuantizationType,
    GGUFValueType,
)

from model_server.checkpoints.tensor_file import TensorFile
from sax.errors import CheckpointError

_CHUNK = 1 << 20
_LENGTH = struct.Struct("<Q")  # of a text
_MAX_DIMENSIONS = 4
_MAX_HEADER = 1 << 27  # bytes, ten times the largest vocabulary's
_NUMBERS = {
    GGUFValueType.UINT8: "<u1",
    GGUFValueType.INT8: "<i1",
    GGUFValueType.UINT16: "<u2",
    GGUFValueType.INT16: "<i2",
    GGUFValueType.UINT32: "<u4",
    GGUFValueType.INT32: "<i4",
    GGUFValueType.FLOAT32: "<f4",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "<u8",
    GGUFValueType.INT64: "<i8",
    GGUFValueType.FLOAT64: "<f8",
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    name: str
    shape: tuple[int, ...]  # slowest axis first, as in numpy
    kind: GGMLQuantizationType
    offset: int  # from the start of the file
    nbytes: int
    file: TensorFile


@dataclass(frozen=True, slots=True)
class GgufHeader:
    metadata: dict[str, Any]  # str, bool, int, float, list[str] or a numpy array
    tensors: dict[str, GgufTensor]


def read_header(file: TensorFile) -> GgufHeader:
    """Read the header. Raises CheckpointError if it is invalid or points past the file's end."""
    cursor = _Cursor(file)
    if cursor.take(4) != b"GGUF":
        raise CheckpointError(f"{file.path} is not a GGUF file: it does not start with GGUF")
    version = cursor.number("<I")
    if version not in (2, 3):
        raise file.damaged(f"GGUF version {version}; supported are 2 and 3, little-endian")
    tensor_count, value_count = cursor.count(24), cursor.count(13)
    metadata = _read_metadata(cursor, value_count)
    entries = [_read_entry(cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise file.damaged(f"general.alignment is {alignment!r}, not a power of two")
    data_start = -(-cursor.offset // alignment) * alignment
    return GgufHeader(metadata, _place(file, entries, data_start))


class _Cursor:
    """Reads a file from front to back, in chunks, never past its end."""

    def __init__(self, file: TensorFile) -> None:
        self.file = file
        self._buffer = b""
        self._start = 0  # file offset of the buffer
        self._at = 0

    @property
    def offset(self) -> int:
        return self._start + self._at

    def take(self, nbytes: int) -> bytes:
        if self._at + nbytes > len(self._buffer):
            self._fill(nbytes)
        out = self._buffer[self._at : self._at + nbytes]
        self._at += nbytes
        return out

    def _fill(self, nbytes: int) -> None:
        self._start, self._at = self.offset, 0
        if self._start + nbytes > _MAX_HEADER:
            raise self.file.damaged(f"its header has more than {_MAX_HEADER} bytes")
        available = self.file.size - self._start
        if nbytes > available:
            raise self.file.truncated(self._start + nbytes, "its header")
        chunk = min(max(nbytes, _CHUNK), available)
        self._buffer = self.file.read(self._start, chunk, "its header").tobytes()

    def number(self, layout: str) -> Any:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]

    def count(self, least_bytes: int) -> int:
        """Read a count of entries that take at least `least_bytes` each.

        Raises CheckpointError if the rest of the file cannot hold them.
        """
        count = self.number("<Q")
        size = min(self.file.size, _MAX_HEADER)
        if count * least_bytes > size - self.offset:
            raise self.file.damaged(
                f"it announces {count} entries at byte {self.offset - 8}, "
                f"more than its {self.file.size} bytes or a header of {_MAX_HEADER} can hold"
            )
        return count

    def text(self) -> str:
        try:
            return self.take(self.count(1)).decode()
        except UnicodeDecodeError as exc:
            raise self.file.damaged(f"text before byte {self.offset} is not UTF-8") from exc

    def texts(self, count: int) -> Iterator[str]:
        """Yield so many texts, each as `text` would, in a third of the time."""
        for _ in range(count):
            first = self._at + _LENGTH.size
            last = first
            if first <= len(self._buffer):
                last += _LENGTH.unpack_from(self._buffer, self._at)[0]
            if not first <= last <= len(self._buffer):
                yield self.text()  # of which a part is not here yet
                continue
            try:
                yield self._buffer[first:last].decode()
            except UnicodeDecodeError:
                self.text()  # tells where
            self._at = last


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(count):
        key = cursor.text()
        if key in metadata:
            raise cursor.file.damaged(f"the key {key!r} appears twice")
        metadata[key] = _read_value(cursor, key)
    return metadata


def _read_value(cursor: _Cursor, key: str) -> Any:
    kind = cursor.number("<I")
    if kind == GGUFValueType.STRING:
        return cursor.text()
    if kind == GGUFValueType.ARRAY:
        return _read_array(cursor, key)
    number = _read_numbers(cursor, key, kind, 1)[0]
    # The decimal the writer meant: 1e-05, not 9.999999747378752e-06.
    return float(str(number)) if kind == GGUFValueType.FLOAT32 else number.item()


def _read_array(cursor: _Cursor, key: str) -> Any:
    kind = cursor.number("<I")
    if kind == GGUFValueType.STRING:
        return list(cursor.texts(cursor.count(8)))
    return _read_numbers(cursor, key, kind, cursor.count(1))


def _read_numbers(cursor: _Cursor, key: str, kind: int, count: int) -> np.ndarray:
    layout = _NUMBERS.get(kind)  # pyright: ignore[reportArgumentType, reportCallIssue]
    if layout is None:
        raise cursor.file.damaged(f"the value of {key!r} is of the unknown type {kind}")
    return np.frombuffer(cursor.take(np.dtype(layout).itemsize * count), layout)


@dataclass(frozen=True, slots=True)
class _TensorInfo:
    """A tensor's entry in the header."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int  # from the start of the tensor data


def _read_entry(cursor: _Cursor) -> _TensorInfo:
    name = cursor.text()
    dimensions = cursor.number("<I")
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise cursor.file.damaged(f"tensor {name!r} has {dimensions} dimensions")
    fastest_first = [cursor.number("<Q") for _ in range(dimensions)]
    return _TensorInfo(
        name, tuple(reversed(fastest_first)), cursor.number("<I"), cursor.number("<Q")
    )


def _place(file: TensorFile, entries: list[_TensorInfo], data_start: int) -> dict[str, GgufTensor]:
    tensors: dict[str, GgufTensor] = {}
    for entry in entries:
        if entry.name in tensors:
            raise file.damaged(f"the tensor {entry.name!r} appears twice")
        tensor = _located(file, entry, data_start)
        if tensor.offset + tensor.nbytes > file.size:
            what = f"tensor {tensor.name!r} ({tensor.nbytes} bytes)"
            raise file.truncated(tensor.offset + tensor.nbytes, what)
        tensors[entry.name] = tensor
    return tensors


def _located(file: TensorFile, entry: _TensorInfo, data_start: int) -> GgufTensor:
    try:
        kind = GGMLQuantizationType(entry.kind)
    except ValueError:
        raise file.damaged(f"tensor {entry.name!r} is of the unknown type {entry.kind}") from None
    block, block_bytes = GGML_QUANT_SIZES[kind]
    elements = 1
    for size in entry.shape:
        elements *= size
    if elements == 0 or entry.shape[-1] % block:
        raise file.damaged(f"tensor {entry.name!r} has the shape {entry.shape} in {kind.name}")
    offset = data_start + entry.offset
    return GgufTensor(entry.name, entry.shape, kind, offset, elements // block * block_bytes, file)
