"""Presents one tensor of a GGUF file in Hugging Face's shape, layout and values.

A view undoes, for any region, what llama.cpp's converter did to the whole tensor. DeepSeek's
kv_b_proj may be stored as two tensors; `tensors` lists the views of a file. A view reads
a matrix: rows and columns as the file has them, whatever their kind.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import ml_dtypes
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from model_server.checkpoints.gguf.architecture import Config, JoinedPlace, TensorPlace
from model_server.checkpoints.gguf.header import GgufTensor
from model_server.checkpoints.gguf.kinds import KINDS
from model_server.checkpoints.packed import PackedBlocks, Packing
from model_server.checkpoints.region import Region, deliver
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
    """A tensor, or one expert's part of it, as a matrix.

    Only the wanted rows are read from disk, in bands small enough for a band's bytes and its
    dequantisation to stay in a core's cache, which also keeps temporary memory small. numpy
    releases the GIL throughout, so the bands of large reads are shared among threads.
    """

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


class GgufView(Protocol):
    """A tensor in Hugging Face's layout. Regions must be explicit (see `region.explicit`)."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def read(self, region: Region, out: np.ndarray | None = None) -> np.ndarray: ...

    def packing(self) -> Packing | None: ...

    def read_packed(self, region: Region) -> PackedBlocks: ...


@dataclass(frozen=True, slots=True)
class StoredView:
    """A tensor stored in the file, perhaps stacked with those of other experts."""

    matrix: Matrix
    shape: tuple[int, ...]
    place: TensorPlace
    order: np.ndarray | None  # i64[rows]: the row in the file for each row here
    columns: np.ndarray | None = None  # i64[columns], likewise
    times: float = 1.0  # what every number in the file was multiplied by

    @property
    def dtype(self) -> np.dtype[Any]:
        changed = self.place.plus or self.place.decay or self.place.whole or self.times != 1.0
        return np.dtype(np.float32) if changed else self.matrix.dtype

    def read(self, region: Region, out: np.ndarray | None = None) -> np.ndarray:
        if self.place.plus:
            return deliver(self._read(region, None) - np.float32(self.place.plus), out)
        if self.place.whole:
            return deliver(self._read(region, None).astype(np.float32), out)
        if self.times != 1.0:
            return deliver(self._read(region, None) / np.float32(self.times), out)
        if self.place.decay:
            return deliver(np.log(-self._read(region, None)), out)
        if self.columns is not None:
            rows = self.matrix.read(self._file_rows(region[0]), slice(0, self.shape[1]))
            return deliver(rows[:, self.columns[region[1]]], out)
        return self._read(region, out)

    def _read(self, region: Region, out: np.ndarray | None) -> np.ndarray:
        if len(self.shape) == 1:
            return deliver(self._vector(region[0]), out)
        if self.place.wrapped:
            whole = self._vector(slice(0, self.matrix.columns)).reshape(self.shape)
            return deliver(whole[region], out)
        if len(self.shape) == 3:
            rows, one, columns = region
            filters = self.matrix.read(self._file_rows(rows), columns)
            return deliver(filters[:, None][:, one], out)
        if self.place.transposed:
            columns, rows = region
            turned = None if out is None else out.T
            return self.matrix.read(self._file_rows(rows), columns, turned).T
        return self.matrix.read(self._file_rows(region[0]), region[1], out)

    def packing(self) -> Packing | None:
        """Also None for a transposed tensor, whose blocks run along its columns."""
        kind = KINDS.get(self.matrix.tensor.kind)
        whole_rows = len(self.shape) == 2 and not self.place.transposed and self.columns is None
        return kind.packing if kind is not None and whole_rows else None

    def read_packed(self, region: Region) -> PackedBlocks:
        if self.packing() is None:
            raise CheckpointError(f"tensor {self.matrix.tensor.name} is not stored in blocks")
        return self.matrix.read_packed(self._file_rows(region[0]), region[1])

    def _file_rows(self, rows: slice) -> np.ndarray | slice:
        return rows if self.order is None else self.order[rows]

    def _vector(self, part: slice) -> np.ndarray:
        """Read part of a vector; reordered ones (only biases, which are short) are read whole."""
        if self.order is None:
            return self.matrix.read(slice(0, 1), part)[0]
        return self.matrix.read(slice(0, 1), slice(0, self.matrix.columns))[0][self.order[part]]


@dataclass(frozen=True, slots=True)
class JoinedView:
    """Rows of several tensors, one after another, for each expert or once."""

    parts: tuple[Matrix, ...]  # [experts * its rows, columns] each
    heights: tuple[int, ...]  # rows of each part for one expert
    shape: tuple[int, ...]  # [rows, columns] or [experts, rows, columns]
    order: np.ndarray | None  # i64[rows]: the row of the parts for each row here
    transposed: bool  # the last two dimensions are swapped here

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.result_type(*(part.dtype for part in self.parts))

    def read(self, region: Region, out: np.ndarray | None = None) -> np.ndarray:
        *front, rows, columns = region
        if self.transposed:
            rows, columns = columns, rows
        experts = range(front[0].start, front[0].stop) if front else range(1)
        found = np.stack([self._expert(expert, rows, columns) for expert in experts])
        found = found.swapaxes(-1, -2) if self.transposed else found
        return deliver(found if front else found[0], out)

    def _expert(self, expert: int, rows: slice, columns: slice) -> np.ndarray:
        made = np.empty((rows.stop - rows.start, columns.stop - columns.start), self.dtype)
        for part, its, places in self._taken(expert, rows):
            made[places] = part.read(its, columns)
        return made

    def _taken(self, expert: int, rows: slice) -> Iterator[tuple[Matrix, np.ndarray, np.ndarray]]:
        """Yield each part, those of its rows that are wanted, and their places among all."""
        wanted = np.arange(rows.start, rows.stop) if self.order is None else self.order[rows]
        start = 0
        for part, height in zip(self.parts, self.heights, strict=True):
            places = np.flatnonzero((wanted >= start) & (wanted < start + height))
            yield part, wanted[places] - start + expert * height, places
            start += height

    def packing(self) -> Packing | None:
        """None if the parts are stored in several forms, or their blocks run along columns here."""
        kinds = [KINDS.get(part.tensor.kind) for part in self.parts]
        forms = {kind and kind.packing for kind in kinds}
        return forms.pop() if len(forms) == 1 and not self.transposed else None

    def read_packed(self, region: Region) -> PackedBlocks:
        if self.packing() is None:
            raise CheckpointError(f"{self.parts[0].tensor.name} is joined with others as numbers")
        *front, rows, columns = region
        if not front:
            return self._packed(0, rows, columns)
        experts = range(front[0].start, front[0].stop)
        return _combined([self._packed(each, rows, columns) for each in experts], np.stack)

    def _packed(self, expert: int, rows: slice, columns: slice) -> PackedBlocks:
        taken = [
            (part.read_packed(its, columns), places)
            for part, its, places in self._taken(expert, rows)
        ]
        back = np.argsort(np.concatenate([places for _, places in taken]))
        return _combined([blocks for blocks, _ in taken], lambda x: np.concatenate(x)[back])


def _combined(
    parts: Sequence[PackedBlocks], combine: Callable[[Sequence[np.ndarray]], np.ndarray]
) -> PackedBlocks:
    """Combine the arrays of blocks of one form."""
    offsets = [part.offsets for part in parts if part.offsets is not None]
    return PackedBlocks(
        combine([part.values for part in parts]),
        combine([part.scales for part in parts]),
        combine(offsets) if offsets else None,
        float4=parts[0].float4,
    )


def joined_view(tensors: Sequence[GgufTensor], join: JoinedPlace, config: Config) -> JoinedView:
    """Raises CheckpointError if the parts do not fit together."""
    fronts = {tensor.shape[:-2] for tensor in tensors}
    widths = {tensor.shape[-1] for tensor in tensors}
    ranks = {len(tensor.shape) for tensor in tensors}
    if len(fronts) != 1 or len(widths) != 1 or not ranks <= {2, 3}:
        given = ", ".join(f"{each.name} is {list(each.shape)}" for each in tensors)
        raise CheckpointError(f"{given}; they must fit together")
    (front,), (width,) = fronts, widths
    heights = tuple(tensor.shape[-2] for tensor in tensors)
    rows, order = sum(heights), None
    if join.order is not None and len(order := join.order(config)) != rows:
        raise CheckpointError(f"tensor {tensors[0].name} is of {heights[0]} rows, unlike its parts")
    sides = (width, rows) if join.transposed else (rows, width)
    return JoinedView(
        tuple(
            Matrix(tensor, math.prod(front) * height, width)
            for tensor, height in zip(tensors, heights, strict=True)
        ),
        heights,
        (*front, *sides),
        order,
        join.transposed,
    )


@dataclass(frozen=True, slots=True)
class ListedView:
    """A number of a layer that the file holds in a list of its metadata."""

    number: float
    shape: tuple[int, ...]  # of one number
    dtype: np.dtype[Any] = np.dtype(np.float32)

    def read(self, region: Region, out: np.ndarray | None = None) -> np.ndarray:
        return deliver(np.full(self.shape, self.number, self.dtype)[region], out)

    def packing(self) -> Packing | None:
        return None

    def read_packed(self, region: Region) -> PackedBlocks:
        raise CheckpointError("a number of the metadata is not stored in blocks")


@dataclass(frozen=True, slots=True)
class SplitView:
    """DeepSeek's kv_b_proj from its two parts: per head, the key rows, then the value rows."""

    keys: tuple[Matrix, ...]  # per head [latent, key rows]
    values: tuple[Matrix, ...]  # per head [value rows, latent]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.keys) * self._head_rows, self.values[0].columns)

    @property
    def _head_rows(self) -> int:
        return self.keys[0].columns + self.values[0].rows

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.result_type(self.keys[0].dtype, self.values[0].dtype)

    def read(self, region: Region, out: np.ndarray | None = None) -> np.ndarray:
        """Read only the heads that the region's rows touch."""
        rows, columns = region
        first, last = rows.start // self._head_rows, math.ceil(rows.stop / self._head_rows)
        heads = [self._head(head, columns) for head in range(first, last)]
        if not heads:
            return deliver(np.empty((0, columns.stop - columns.start), self.dtype), out)
        start = rows.start - first * self._head_rows
        found = np.concatenate(heads)[start : start + rows.stop - rows.start]
        return deliver(found.astype(self.dtype), out)

    def _head(self, head: int, columns: slice) -> np.ndarray:
        keys, values = self.keys[head], self.values[head]
        return np.concatenate(
            [
                keys.read(columns, slice(0, keys.columns)).T,
                values.read(slice(0, values.rows), columns),
            ]
        )

    def packing(self) -> Packing | None:
        """Always None: the blocks of the keys run along the columns."""
        return None

    def read_packed(self, region: Region) -> PackedBlocks:
        raise CheckpointError(f"tensor {self.keys[0].tensor.name} is not stored in blocks of rows")
