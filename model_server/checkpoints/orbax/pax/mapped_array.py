"""An array in a file that is mapped into memory, with the part of tensorstore's interface in use.

Tensorstore itself takes only aligned numbers, and msgpack packs them anywhere. Reading a part
touches only the pages that it lies on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

Index = int | slice

_AT_ONCE = 1 << 24  # numbers of an array in pieces that are joined together


@dataclass(frozen=True, slots=True)
class MappedArray:
    """Numbers in a row, in one piece or several, as an array of `shape`."""

    shape: tuple[int, ...]
    pieces: Sequence[np.ndarray]

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.pieces[0].dtype

    def __getitem__(self, index: Index | tuple[Index, ...]) -> MappedPart:
        return MappedPart(self, index if isinstance(index, tuple) else (index,))

    def read(self) -> Future[np.ndarray]:
        return self[()].read()

    def part(self, index: tuple[Index, ...]) -> np.ndarray:
        """Return a copy of the numbers at an index of whole numbers and slices without steps."""
        if len(self.pieces) == 1:
            return self.pieces[0].reshape(self.shape)[index].copy()
        first, *rest = (*index, *(slice(None) for _ in self.shape[len(index) :]))
        whole = first if isinstance(first, slice) else slice(first, first + 1)
        start, stop, _ = whole.indices(self.shape[0])
        blocks = [block[(slice(None), *rest)] for block in self._rows(start, stop)]
        made = np.concatenate(blocks)
        return made if isinstance(first, slice) else made[0]

    def _rows(self, start: int, stop: int) -> Iterator[np.ndarray]:
        """Yield the rows of the first dimension from start to stop, some at a time."""
        row = math.prod(self.shape[1:])
        step = max(_AT_ONCE // max(row, 1), 1)
        for first in range(start, max(stop, start + 1), step):
            last = min(first + step, stop)
            numbers = self._joined(first * row, last * row)
            yield numbers.reshape(max(last - first, 0), *self.shape[1:])

    def _joined(self, start: int, stop: int) -> np.ndarray:
        found, begin = [self.pieces[0][:0]], 0
        for piece in self.pieces:
            found.append(piece[max(start - begin, 0) : max(stop - begin, 0)])
            begin += len(piece)
        return np.concatenate(found)


@dataclass(frozen=True, slots=True)
class MappedPart:
    """A part of an array, before it is read."""

    array: MappedArray
    index: tuple[Index, ...]

    def read(self) -> Future[np.ndarray]:
        future: Future[np.ndarray] = Future()
        future.set_result(self.array.part(self.index))
        return future
