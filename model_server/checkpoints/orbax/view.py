"""Presents part of a stored array as a Hugging Face tensor, with its axes reordered.

JAX models keep heads and layers as separate axes; Hugging Face merges heads into matrices and has
one tensor per layer. Reading a region reads no more of the array than it needs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from model_server.checkpoints.region import Region, deliver, explicit, region_shape


@dataclass(frozen=True, slots=True)
class OrbaxView:
    """A mapping from array axes: each is fixed at one index or merged into one dimension."""

    path: str  # of the array
    dims: tuple[tuple[int, ...], ...]  # per dimension the axes merged into it, slowest first
    taken: tuple[tuple[int, int], ...] = ()  # axis, index
    rows: int | None = None  # rows without the array's padding
    scale: float = 1.0
    offset: float = 0.0  # added in float32, in which such a view is read
    # Rotary pairs are neighbours on the last axis of the first dimension; Hugging Face keeps the
    # first and the second elements of all pairs in two halves.
    paired: bool = False

    @property
    def is_as_stored(self) -> bool:
        """True if the tensor is the array, number by number."""
        axes = tuple((axis,) for axis in range(len(self.dims)))
        plain = not self.paired and self.scale == 1.0 and not self.offset
        return plain and self.dims == axes and not self.taken and self.rows is None

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        if not self.dims:
            return ()
        first, *rest = (math.prod(stored[axis] for axis in axes) for axes in self.dims)
        return (first if self.rows is None else min(first, self.rows), *rest)

    def read(
        self, array: Any, region: Region | None = None, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Read a region of the view.

        array: a tensorstore, or what is indexed and read as one; only what is indexed is read.
        """
        stored = tuple(array.shape)
        if not self.dims:
            return deliver(np.asarray(array.read().result()), out)
        wanted = explicit(region or (), self.shape(stored))
        if narrow := self._narrowed(wanted[0], stored):
            view, rows = narrow
            return view.read(array, (rows, *wanted[1:]), out)
        parts = [_widened(part, axes, stored) for part, axes in zip(wanted, self.dims, strict=True)]
        if self.paired and len(self.dims[0]) == 1:  # a pair may be far apart: read all
            parts[0] = (slice(None), wanted[0])
        index: list[Any] = [slice(None)] * len(stored)
        for axis, position in self.taken:
            index[axis] = position
        for (outer, _), axes in zip(parts, self.dims, strict=True):
            index[axes[0]] = outer
        stepped = any(part.step not in (None, 1) for part in wanted)
        import tensorstore as ts  # other checkpoints do without

        if out is not None and not stepped and self._lies_as(array, out):
            source = array[tuple(index)][ts.d[:].translate_to[0]]
            ts.array(out, copy=False, write=True).write(source.transpose(self._order)).result()
            return out
        values = self._arranged(array[tuple(index)].read().result())
        cut = values[tuple(inner for _, inner in parts)]
        # A transposed view, not a copy, where no axes merge.
        return deliver(cut.reshape(region_shape(wanted)), out)

    def _lies_as(self, array: Any, out: np.ndarray) -> bool:
        import tensorstore as ts

        alone = isinstance(array, ts.TensorStore) and all(len(axes) == 1 for axes in self.dims)
        plain = not self.paired and self.scale == 1.0 and not self.offset
        return alone and plain and array.dtype == out.dtype

    def _narrowed(self, rows: slice, stored: tuple[int, ...]) -> tuple[OrbaxView, slice] | None:
        """Fix the slowest of three merged axes if all rows have one index there."""
        slowest, *rest = self.dims[0]
        inner = math.prod(stored[axis] for axis in rest)
        if (
            len(rest) < 2
            or rows.start >= rows.stop
            or rows.start // inner != (rows.stop - 1) // inner
        ):
            return None
        index = rows.start // inner
        taken = (*self.taken, (slowest, index))
        view = replace(self, dims=(tuple(rest), *self.dims[1:]), taken=taken, rows=None)
        return view, slice(rows.start - index * inner, rows.stop - index * inner, rows.step)

    @property
    def _order(self) -> list[int]:
        """The transposition of the axes that remain after `taken` is applied."""
        left = sorted(axis for axes in self.dims for axis in axes)
        return [left.index(axis) for axes in self.dims for axis in axes]

    def _arranged(self, values: np.ndarray) -> np.ndarray:
        values = values.transpose(self._order)
        if self.paired:
            values = _halves(values, len(self.dims[0]) - 1)
        if self.scale != 1.0:
            values = (values.astype(np.float32) * np.float32(self.scale)).astype(values.dtype)
        if self.offset:
            values = values.astype(np.float32) + np.float32(self.offset)
        sizes = iter(values.shape)
        return values.reshape([math.prod(next(sizes) for _ in axes) for axes in self.dims])


def _widened(part: slice, axes: tuple[int, ...], stored: tuple[int, ...]) -> tuple[slice, slice]:
    """Return the slice to read on the slowest axis, and the slice wanted of the merged result."""
    inner = math.prod(stored[axis] for axis in axes[1:])
    first, last = part.start // max(inner, 1), -(-part.stop // max(inner, 1))
    start, stop = part.start - first * inner, part.stop - first * inner
    return slice(first, last), slice(start, stop, part.step)


def _halves(values: np.ndarray, axis: int) -> np.ndarray:
    """Reorder a0 b0 a1 b1 ... to a0 a1 ... b0 b1 ... along one axis."""
    firsts = np.take(values, np.arange(0, values.shape[axis], 2), axis)
    seconds = np.take(values, np.arange(1, values.shape[axis], 2), axis)
    return np.concatenate([firsts, seconds], axis)
