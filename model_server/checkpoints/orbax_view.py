"""A Hugging Face tensor as a piece of a stored array, with its axes in another order.

JAX models keep heads and layers as axes of their own; Hugging Face's matrices merge or separate
them. A view reads any region of the matrix from no more of the array than that region needs.
Pure arithmetic on axes: knows no names and no files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorstore as ts

from model_server.checkpoints.region import Region, deliver, explicit, region_shape


@dataclass(frozen=True, slots=True)
class View:
    """Every axis of the array is either taken at one index or part of one dimension."""

    path: str  # of the array
    dims: tuple[tuple[int, ...], ...]  # per dimension the axes merged into it, slowest first
    taken: tuple[tuple[int, int], ...] = ()  # axis, index
    rows: int | None = None  # the first that count; the array is padded
    scale: float = 1.0
    # The last axis of the first dimension holds what rotates together as neighbours; Hugging Face
    # keeps the first and the second of all pairs in two halves.
    paired: bool = False

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """Of the view of an array of this shape."""
        first, *rest = (math.prod(stored[axis] for axis in axes) for axes in self.dims)
        return (first if self.rows is None else min(first, self.rows), *rest)

    def read(
        self, array: Any, region: Region | None = None, out: np.ndarray | None = None
    ) -> np.ndarray:
        """A region of the view. `array` is a tensorstore, read where it is indexed."""
        stored = tuple(array.shape)
        if not self.dims:
            return deliver(np.asarray(array.read().result()), out)
        wanted = explicit(region or (), self.shape(stored))
        parts = [_widened(part, axes, stored) for part, axes in zip(wanted, self.dims, strict=True)]
        if self.paired and len(self.dims[0]) == 1:  # the other half of a pair may be anywhere
            parts[0] = (slice(None), wanted[0])
        index: list[Any] = [slice(None)] * len(stored)
        for axis, position in self.taken:
            index[axis] = position
        for (outer, _), axes in zip(parts, self.dims, strict=True):
            index[axes[0]] = outer
        if out is not None and self._lies_as(array, out):
            source = array[tuple(index)][ts.d[:].translate_to[0]]
            ts.array(out, copy=False, write=True).write(source.transpose(self._order)).result()
            return out
        values = self._arranged(array[tuple(index)].read().result())
        cut = values[tuple(inner for _, inner in parts)]
        # Transposed in place where no axes merge.
        return deliver(cut.reshape(region_shape(wanted)), out)

    def _lies_as(self, array: Any, out: np.ndarray) -> bool:
        """Whether the numbers only need to be put in order."""
        alone = all(len(axes) == 1 for axes in self.dims)
        return alone and not self.paired and self.scale == 1.0 and array.dtype == out.dtype

    @property
    def _order(self) -> list[int]:
        """Of the axes that are left once some are taken."""
        left = sorted(axis for axes in self.dims for axis in axes)
        return [left.index(axis) for axes in self.dims for axis in axes]

    def _arranged(self, values: np.ndarray) -> np.ndarray:
        """What was read, with this view's dimensions."""
        values = values.transpose(self._order)
        if self.paired:
            values = _halves(values, len(self.dims[0]) - 1)
        if self.scale != 1.0:
            values = (values.astype(np.float32) * np.float32(self.scale)).astype(values.dtype)
        sizes = iter(values.shape)
        return values.reshape([math.prod(next(sizes) for _ in axes) for axes in self.dims])


def _widened(part: slice, axes: tuple[int, ...], stored: tuple[int, ...]) -> tuple[slice, slice]:
    """What to read of the slowest axis, and which part of the merged result is wanted."""
    inner = math.prod(stored[axis] for axis in axes[1:])
    first, last = part.start // max(inner, 1), -(-part.stop // max(inner, 1))
    return slice(first, last), slice(part.start - first * inner, part.stop - first * inner)


def _halves(values: np.ndarray, axis: int) -> np.ndarray:
    """Along one axis: a0 b0 a1 b1 ... becomes a0 a1 ... b0 b1 ..."""
    firsts = np.take(values, np.arange(0, values.shape[axis], 2), axis)
    seconds = np.take(values, np.arange(1, values.shape[axis], 2), axis)
    return np.concatenate([firsts, seconds], axis)
