"""Reads rows and columns of one tensor of a GGUF file, whatever its kind.

Only the wanted rows are read from disk, in bands small enough for a band's bytes and its
dequantisation to stay in a core's cache, which also keeps temporary memory small. numpy releases
the GIL throughout, so the bands of large reads are shared among threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from model_server.checkpoints.gguf.header import GgufTensor
from model_server.checkpoints.gguf.kinds import KINDS
from model_server.checkpoints.packed import PackedBlocks
from model_server.kernels.aligned import aligned_empty
from sax.errors import CheckpointError

# Unquantised kinds; every other kind is dequantised to float32.
PLAIN: dict[GGMLQuantizationType, np.dtype[Any]] = {
    GGMLQuantizationType.F32: np.dtype(np.float32),
    GGMLQuantizationType.F16: np.dtype(np.float16),
    GGMLQuantizationType.BF16: np.dtype(ml_dtypes.bfloat16),
}
# Tables; a weight is never stored so.
WHOLE: dict[GGMLQuantizationType, np.dtype[Any]] = {GGMLQuantizationType.I32: np.dtype(np.int32)}
_STORED = PLAIN | WHOLE
_BAND = 256 * 1024  # numbers; as float32 they fill a core's L2 cache
_ALONE = 16 * _BAND  # smaller reads use a single thread
_SKIPPED_ROWS = 2  # reading this many unwanted rows costs less than another read


@dataclass(frozen=True, slots=True)
class Band:
    """Consecutive rows of the file, and where they go in the result."""

    start: int
    stop: int
    kept: Any  # the wanted ones among the rows read: a slice, or i64[n]
    into: Any  # their rows in the result: a slice, or i64[n]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A tensor, or one expert's part of it, as a matrix."""

    tensor: GgufTensor
    rows: int
    columns: int
    first: int = 0  # the tensor's row where this matrix starts

    @property
    def dtype(self) -> np.dtype[Any]:
        return _STORED.get(self.tensor.kind, np.dtype(np.float32))

    def read(
        self, rows: np.ndarray | slice, columns: slice, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the given rows, in order, and columns; slices must be explicit.

        Quantised tensors are read as float32. `out`, if given, is filled in its own dtype.
        """
        if out is None:
            out = aligned_empty((_count(rows), columns.stop - columns.start), self.dtype)
        if not out.size:
            return out
        if self.tensor.kind in _STORED:
            return self._read_plain(rows, columns, out)
        kind = KINDS[self.tensor.kind]
        blocks = slice(columns.start // kind.size, -(-columns.stop // kind.size))
        aligned = columns == slice(blocks.start * kind.size, blocks.stop * kind.size)
        cut = slice(
            columns.start - blocks.start * kind.size, columns.stop - blocks.start * kind.size
        )
        direct = aligned and out.dtype == np.float32 and out.flags.c_contiguous

        def dequantize(raw: np.ndarray, band: Band) -> None:
            if direct and isinstance(band.into, slice):
                kind.dequantize(raw.reshape(-1, kind.nbytes), out[band.into].reshape(-1, kind.size))
                return
            wide = np.empty((len(raw), raw.shape[1] * kind.size), np.float32)
            kind.dequantize(raw.reshape(-1, kind.nbytes), wide.reshape(-1, kind.size))
            out[band.into] = wide[:, cut]

        self._each_band(rows, blocks, dequantize)
        return out

    def _read_plain(self, rows: np.ndarray | slice, columns: slice, out: np.ndarray) -> np.ndarray:
        as_stored = columns == slice(0, self.columns) and out.dtype == self.dtype
        if as_stored and isinstance(rows, slice) and out.flags.c_contiguous:
            return self.tensor.file.fill(out, self._offset(rows.start), self._what)

        def copy(raw: np.ndarray, band: Band) -> None:
            out[band.into] = raw.reshape(len(raw), -1).view(self.dtype)

        self._each_band(rows, columns, copy)
        return out

    def read_packed(self, rows: np.ndarray | slice, columns: slice) -> PackedBlocks:
        """Read without dequantising. Raises CheckpointError if the columns cut a block."""
        kind = KINDS[self.tensor.kind]
        block = kind.packing.block or 1
        if columns.start % block or columns.stop % block:
            raise CheckpointError(
                f"tensor {self.tensor.name} is quantised in blocks of {block} columns; columns "
                f"{columns.start} to {columns.stop} are not whole blocks"
            )
        count, width = _count(rows), columns.stop - columns.start
        values = np.empty((count, width), np.int8)
        scales = np.empty((count, width // block), np.float32)
        offsets = np.empty_like(scales) if kind.packing.offset else None
        blocks = slice(columns.start // kind.size, -(-columns.stop // kind.size))
        cut = slice(
            columns.start - blocks.start * kind.size, columns.stop - blocks.start * kind.size
        )
        scale_cut = slice(cut.start // block, cut.stop // block)

        def unpack(raw: np.ndarray, band: Band) -> None:
            packed = kind.pack(raw.reshape(-1, kind.nbytes))
            values[band.into] = packed.values.reshape(len(raw), -1)[:, cut]
            scales[band.into] = packed.scales.reshape(len(raw), -1)[:, scale_cut]
            if offsets is not None and packed.offsets is not None:
                offsets[band.into] = packed.offsets.reshape(len(raw), -1)[:, scale_cut]

        if count and width:
            self._each_band(rows, blocks, unpack)
        return PackedBlocks(values, scales, offsets, float4=kind.is_float4)

    def _raw(self, start: int, stop: int) -> np.ndarray:
        return self.tensor.file.read(
            self._offset(start), (stop - start) * self._row_nbytes, self._what
        )

    def _offset(self, row: int) -> int:
        return self.tensor.offset + (self.first + row) * self._row_nbytes

    @property
    def _what(self) -> str:
        return f"tensor {self.tensor.name!r}"

    @property
    def _row_nbytes(self) -> int:
        size, nbytes = GGML_QUANT_SIZES[self.tensor.kind]
        return self.columns // size * nbytes

    def _each_band(
        self, rows: np.ndarray | slice, blocks: slice, use: Callable[[np.ndarray, Band], None]
    ) -> None:
        """Call `use` with u8[rows, blocks, bytes of a block] and the band, for every band."""
        block_nbytes = GGML_QUANT_SIZES[self.tensor.kind][1]

        def read(band: Band) -> None:
            raw = self._raw(band.start, band.stop).reshape(band.stop - band.start, -1, block_nbytes)
            use(raw[band.kept, blocks], band)

        bands = list(_bands(rows, max(1, _BAND // self.columns)))
        threads = min(len(bands), os.cpu_count() or 1)
        if threads < 2 or _count(rows) * self.columns < _ALONE:
            for band in bands:
                read(band)
            return
        with ThreadPoolExecutor(threads, "gguf-read") as pool:
            for _ in pool.map(read, bands):
                pass


def _count(rows: np.ndarray | slice) -> int:
    return rows.stop - rows.start if isinstance(rows, slice) else len(rows)


def _bands(rows: np.ndarray | slice, height: int) -> Iterator[Band]:
    """Split into bands of at most `height` rows that are close together in the file."""
    if isinstance(rows, slice):
        for start in range(rows.start, rows.stop, height):
            stop = min(start + height, rows.stop)
            yield Band(start, stop, slice(None), slice(start - rows.start, stop - rows.start))
        return
    by_place = np.argsort(rows)  # in file order
    sorted_rows = rows[by_place]
    gaps = np.flatnonzero(np.diff(sorted_rows) > _SKIPPED_ROWS) + 1
    for run, places in zip(np.split(sorted_rows, gaps), np.split(by_place, gaps), strict=True):
        for at in range(0, len(run), height):
            part = run[at : at + height]
            start = int(part[0])
            yield Band(start, int(part[-1]) + 1, part - start, places[at : at + height])
