"""Reads one quantised weight: as the checkpoint stores it, or quantised while reading.

Values, scales and offsets are requested one after the other, each by its own regions; the data
behind a region is read once. Quantising goes band by band, so its working set stays in a core's
cache and the extra memory is that of one part.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.packed import PackedBlocks, Packing
from model_server.checkpoints.region import Region, region_shape, whole
from model_server.kernels.aligned import aligned_empty
from model_server.models.weights.quantization import quantize, refined
from model_server.models.weights.source import RegionPiece
from model_server.models.weights.weight import Declaration, Leaf

_BAND = 64 * 1024  # numbers quantised at once
_ALONE = 32  # fewer bands than this are not worth threads
_THREADS = 8  # more would need more memory for their bands
_PARTS = ("values", "scales", "offsets")


class PackedReader:
    """Reader for one weight; drop it once the weight is placed."""

    def __init__(self, weight: Declaration, packing: Packing, checkpoint: Checkpoint) -> None:
        self._weight = weight
        self._packing = packing
        self._checkpoint = checkpoint
        self._dtypes = {leaf.part: leaf.dtype for leaf in weight.plain}
        self._block = packing.block or weight.shape[-1]
        self._read: dict[tuple[tuple[int, int], ...], PackedBlocks] = {}

    def read(self, leaf: Leaf, region: Region) -> np.ndarray:
        columns, inner = self._columns(leaf.part, region[-1])
        blocks = self._once((*region[:-1], columns))
        return _filled(_part(blocks, leaf.part)[..., inner], region_shape(region)[-1])

    def _once(self, region: Region) -> PackedBlocks:
        key = tuple((part.start, part.stop) for part in region)
        if key not in self._read:
            self._read[key] = self._blocks(region)
        return self._read[key]

    def _columns(self, part: str, given: slice) -> tuple[slice, slice]:
        """Return the whole blocks of columns that cover a region, and its place within them."""
        block = self._block
        if part != "values":
            stop = min(given.stop * block, self._weight.shape[-1])  # zeros may lie behind
            return slice(given.start * block, stop), slice(None)
        start, stop = given.start // block * block, -(-given.stop // block) * block
        return slice(start, stop), slice(given.start - start, given.stop - start)

    def _blocks(self, region: Region) -> PackedBlocks:
        out = self._empty(region_shape(region))
        pieces = list(self._weight.source.pieces(self._checkpoint, region))
        if self._weight.kept:
            for piece in pieces:
                self._put(out, piece.place, self._stored(piece))
        elif all(piece.place[-1] == slice(0, out.values.shape[-1]) for piece in pieces):
            for piece in pieces:
                self._quantize(out, piece.place, piece.read(self._checkpoint))
        else:  # scales depend on whole rows, and no piece holds one
            numbers = self._weight.source.read(self._checkpoint, region)
            self._quantize(out, whole(numbers.shape), numbers)
        return out

    def _empty(self, shape: tuple[int, ...]) -> PackedBlocks:
        by_block = (*shape[:-1], shape[-1] // self._block)
        values, scales, offsets = (
            aligned_empty(shape if part == "values" else by_block, self._dtypes[part])
            if part in self._dtypes
            else None
            for part in _PARTS
        )
        assert values is not None
        assert scales is not None
        return PackedBlocks(values, scales, offsets)

    def _put(self, out: PackedBlocks, place: Region, blocks: PackedBlocks) -> None:
        columns = place[-1]
        by_block = slice(columns.start // self._block, columns.stop // self._block)
        out.values[place] = blocks.values
        out.scales[(*place[:-1], by_block)] = blocks.scales
        if out.offsets is not None:
            out.offsets[(*place[:-1], by_block)] = blocks.offsets

    def _stored(self, piece: RegionPiece) -> PackedBlocks:
        form = self._checkpoint.packing(piece.name)
        assert form is not None, "only quantised tensors are kept"
        assert not piece.transposed, "what is transposed is not kept"
        return refined(self._checkpoint.read_packed(piece.name, piece.region), form, self._packing)

    def _quantize(self, out: PackedBlocks, place: Region, numbers: np.ndarray) -> None:
        *outer, rows, columns = place
        height = max(1, _BAND // max(numbers.shape[-1], 1))

        def one(first: int) -> None:
            band = numbers[..., first : first + height, :]
            start = rows.start + first
            stop = start + band.shape[-2]
            self._put(out, (*outer, slice(start, stop), columns), quantize(band, self._packing))

        _each(one, range(0, numbers.shape[-2], height))


def _each(work: Callable[[int], None], bands: Sequence[int]) -> None:
    """Split a large part over threads; numpy releases the GIL."""
    threads = min(_THREADS, os.cpu_count() or 1)
    if len(bands) < _ALONE or threads < 2:
        for band in bands:
            work(band)
        return
    with ThreadPoolExecutor(threads, "quantize") as pool:
        deque(pool.map(work, bands), maxlen=0)


def _part(blocks: PackedBlocks, part: str) -> np.ndarray:
    found = getattr(blocks, part)
    assert found is not None, f"the packing says that there are {part}"
    return found


def _filled(found: np.ndarray, columns: int) -> np.ndarray:
    """[..., columns], with zeros behind what was found."""
    rest = columns - found.shape[-1]
    return np.pad(found, (*[(0, 0)] * (found.ndim - 1), (0, rest))) if rest else found
