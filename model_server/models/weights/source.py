"""Weight sources: expressions over a checkpoint's tensors.

Checkpoints store whatever suited their writer: separate or fused projections, one tensor per
expert, transposed products. An expression says how a weight is assembled from them, and reads any
region of the result without the rest, one tensor's part at a time: besides the result it needs
memory for only one part.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from model_server.checkpoints.region import Region, region_shape, whole
from model_server.kernels.aligned import aligned_empty
from sax.errors import CheckpointError

Empty = Callable[[Sequence[int], Any], np.ndarray]  # as `aligned_empty`


class Tensors(Protocol):
    """The checkpoint interface that expressions need."""

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(
        self, name: str, region: Region | None = None, out: np.ndarray | None = None
    ) -> np.ndarray: ...


@dataclass(frozen=True, slots=True)
class RegionPiece:
    """A region of one tensor, and its place in the requested region."""

    name: str
    region: Region  # of the tensor
    place: Region  # may have more dimensions in front, of size 1
    transposed: bool = False

    def read(self, tensors: Tensors) -> np.ndarray:
        """Read its numbers in the orientation of the place."""
        numbers = tensors.read(self.name, self.region)
        return numbers.swapaxes(-1, -2) if self.transposed else numbers

    def fill(self, tensors: Tensors, out: np.ndarray) -> None:
        """Read its numbers into their place in `out`, the requested region."""
        front = out.ndim - len(self.region)
        stack = (part.start for part in self.place[:front])
        into = out[(*stack, *self.place[front:], ...)]
        tensors.read(self.name, self.region, into.swapaxes(-1, -2) if self.transposed else into)

    def shifted(self, axis: int, by: int) -> RegionPiece:
        """Return the same piece within a larger region."""
        part = self.place[axis]
        place = _replace(self.place, axis, slice(part.start + by, part.stop + by))
        return replace(self, place=place)


class WeightSource(ABC):
    """An expression. Methods raise CheckpointError naming the tensors that do not fit."""

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Names of its tensors."""

    @abstractmethod
    def shape(self, tensors: Tensors) -> tuple[int, ...]: ...

    @abstractmethod
    def pieces(self, tensors: Tensors, region: Region) -> Iterator[RegionPiece]:
        """Pieces that make up a region; reads nothing yet."""

    def read(
        self,
        tensors: Tensors,
        region: Region,
        dtype: Any = None,
        empty: Empty = aligned_empty,
    ) -> np.ndarray:
        """Read a region, aligned for a device, in this dtype (None: the widest stored).

        empty: makes the array for a dtype that is given.
        """
        shape = region_shape(region)
        if dtype is None:
            return self._read_widest(tensors, region, shape)
        out = empty(shape, dtype)
        for piece in self.pieces(tensors, region):
            piece.fill(tensors, out)
        return out

    def _read_widest(self, tensors: Tensors, region: Region, shape: tuple[int, ...]) -> np.ndarray:
        out = None
        for piece in self.pieces(tensors, region):
            numbers = piece.read(tensors)
            if numbers.shape == shape:
                return numbers
            if out is None:
                out = np.empty(shape, numbers.dtype)
            out = out.astype(np.result_type(out, numbers), copy=False)
            out[piece.place] = numbers
            del numbers  # free it before the next is read
        return np.empty(shape, np.float32) if out is None else out

    def _misshapen(self, tensors: Tensors, wanted: str) -> CheckpointError:
        given = ", ".join(f"{name} is {list(tensors.shape(name))}" for name in self.names[:3])
        return CheckpointError(f"{given}; {wanted}")


@dataclass(frozen=True, slots=True)
class Tensor(WeightSource):
    """A tensor as stored."""

    name: str

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def shape(self, tensors: Tensors) -> tuple[int, ...]:
        return tensors.shape(self.name)

    def pieces(self, tensors: Tensors, region: Region) -> Iterator[RegionPiece]:
        yield RegionPiece(self.name, region, whole(region_shape(region)))


@dataclass(frozen=True, slots=True)
class Joined(WeightSource):
    """Parts concatenated along a dimension."""

    parts: tuple[WeightSource, ...]
    axis: int = 0
    sizes: tuple[int, ...] | None = None  # of the parts along it, if the model knows them

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for part in self.parts for name in part.names)

    def shape(self, tensors: Tensors) -> tuple[int, ...]:
        shapes = [part.shape(tensors) for part in self.parts]
        rests = {(*shape[: self.axis], *shape[self.axis + 1 :]) for shape in shapes}
        if len(rests) != 1 or any(len(shape) <= self.axis for shape in shapes):
            raise self._misshapen(tensors, "they must agree to be joined")
        if self.sizes and self.sizes != tuple(shape[self.axis] for shape in shapes):
            wanted = " and ".join(map(str, self.sizes))
            raise self._misshapen(tensors, f"the configuration says {wanted} rows")
        total = sum(shape[self.axis] for shape in shapes)
        return (*shapes[0][: self.axis], total, *shapes[0][self.axis + 1 :])

    def pieces(self, tensors: Tensors, region: Region) -> Iterator[RegionPiece]:
        wanted, first = region[self.axis], 0
        for part in self.parts:
            end = first + part.shape(tensors)[self.axis]
            start, stop = max(wanted.start, first), min(wanted.stop, end)
            if start < stop:
                inner = _replace(region, self.axis, slice(start - first, stop - first))
                for piece in part.pieces(tensors, inner):
                    yield piece.shifted(self.axis, start - wanted.start)
            first = end


@dataclass(frozen=True, slots=True)
class Stacked(WeightSource):
    """Equal-shaped parts along a new first dimension, such as the experts of a layer."""

    parts: tuple[WeightSource, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for part in self.parts for name in part.names)

    def shape(self, tensors: Tensors) -> tuple[int, ...]:
        shapes = {part.shape(tensors) for part in self.parts}
        if len(shapes) != 1:
            raise self._misshapen(tensors, "they must all have the same shape to be stacked")
        return (len(self.parts), *shapes.pop())

    def pieces(self, tensors: Tensors, region: Region) -> Iterator[RegionPiece]:
        for number, part in enumerate(self.parts[region[0]]):
            for piece in part.pieces(tensors, region[1:]):
                yield replace(piece, place=(slice(number, number + 1), *piece.place))


@dataclass(frozen=True, slots=True)
class Transposed(WeightSource):
    """A matrix stored as [in, out], or several of them, [E, in, out]."""

    part: WeightSource

    @property
    def names(self) -> tuple[str, ...]:
        return self.part.names

    def shape(self, tensors: Tensors) -> tuple[int, ...]:
        return _turned(self.part.shape(tensors))

    def pieces(self, tensors: Tensors, region: Region) -> Iterator[RegionPiece]:
        for piece in self.part.pieces(tensors, _turned(region)):
            yield replace(piece, place=_turned(piece.place), transposed=not piece.transposed)


@dataclass(frozen=True, slots=True)
class Portion(WeightSource):
    """Every step-th of the numbers from `start` to `stop` along a dimension but the first.

    For tensors that hold the matrices of all experts, as gates and ups beside or between each
    other. `part` is a tensor or a transposed one.
    """

    part: WeightSource
    axis: int
    start: int
    stop: int
    of: int  # size of the dimension
    step: int = 1

    @property
    def names(self) -> tuple[str, ...]:
        return self.part.names

    def shape(self, tensors: Tensors) -> tuple[int, ...]:
        shape = self.part.shape(tensors)
        if len(shape) <= self.axis or shape[self.axis] != self.of:
            raise self._misshapen(tensors, f"the configuration says {self.of} in each expert")
        count = len(range(self.start, self.stop, self.step))
        return (*shape[: self.axis], count, *shape[self.axis + 1 :])

    def pieces(self, tensors: Tensors, region: Region) -> Iterator[RegionPiece]:
        wanted = region[self.axis]
        first = self.start + wanted.start * self.step
        last = self.start + (wanted.stop - 1) * self.step
        step = None if self.step == 1 else self.step
        yield from self.part.pieces(
            tensors, _replace(region, self.axis, slice(first, last + 1, step))
        )


@dataclass(frozen=True, slots=True)
class GroupRows(WeightSource):
    """The same rows of every group, such as the keys of a tensor that holds q, k, v head by head.

    The first dimension is `groups` times `size` rows; rows [start, stop) of each group are taken.
    """

    part: WeightSource
    size: int
    start: int
    stop: int
    groups: int = 1

    @property
    def names(self) -> tuple[str, ...]:
        return self.part.names

    def shape(self, tensors: Tensors) -> tuple[int, ...]:
        rows, *rest = self.part.shape(tensors) or (1,)
        if rows != self.groups * self.size:
            raise self._misshapen(tensors, f"the configuration says {self.groups * self.size} rows")
        return (self.groups * (self.stop - self.start), *rest)

    def pieces(self, tensors: Tensors, region: Region) -> Iterator[RegionPiece]:
        taken, at = self.stop - self.start, 0
        first, last = region[0].start // taken, math.ceil(region[0].stop / taken)
        for group in range(first, last):
            start = max(region[0].start - group * taken, 0)
            stop = min(region[0].stop - group * taken, taken)
            base = group * self.size + self.start
            inner = (slice(base + start, base + stop), *region[1:])
            for piece in self.part.pieces(tensors, inner):
                yield piece.shifted(0, at)
            at += stop - start


@dataclass(frozen=True, slots=True)
class RepeatedGroups(WeightSource):
    """Every group of `size` rows repeated `times`: KV heads when devices outnumber them."""

    part: WeightSource
    size: int
    times: int

    @property
    def names(self) -> tuple[str, ...]:
        return self.part.names

    def shape(self, tensors: Tensors) -> tuple[int, ...]:
        rows, *rest = self.part.shape(tensors)
        return (rows * self.times, *rest)

    def pieces(self, tensors: Tensors, region: Region) -> Iterator[RegionPiece]:
        at = region[0].start
        while at < region[0].stop:
            group, inside = divmod(at, self.size)
            count = min(self.size - inside, region[0].stop - at)
            base = group // self.times * self.size + inside
            for piece in self.part.pieces(tensors, (slice(base, base + count), *region[1:])):
                yield piece.shifted(0, at - region[0].start)
            at += count


@dataclass(frozen=True, slots=True)
class PaddedColumns(WeightSource):
    """A matrix with columns of zeros behind its own."""

    part: WeightSource
    columns: int
    padded: int  # columns with those of zeros

    @property
    def names(self) -> tuple[str, ...]:
        return self.part.names

    def shape(self, tensors: Tensors) -> tuple[int, ...]:
        *rows, columns = self.part.shape(tensors) or (0,)
        if columns != self.columns:
            raise self._misshapen(tensors, f"the configuration says {self.columns} columns")
        return (*rows, self.padded)

    def pieces(self, tensors: Tensors, region: Region) -> Iterator[RegionPiece]:
        start, stop = region[-1].start, min(region[-1].stop, self.columns)
        if start < stop:
            yield from self.part.pieces(tensors, (*region[:-1], slice(start, stop)))

    def read(
        self,
        tensors: Tensors,
        region: Region,
        dtype: Any = None,
        empty: Empty = aligned_empty,
    ) -> np.ndarray:
        start, stop = region[-1].start, min(region[-1].stop, self.columns)
        out = empty(region_shape(region), dtype or np.float32)
        if start < stop:
            found = self.part.read(tensors, (*region[:-1], slice(start, stop)), dtype)
            out = out if dtype else aligned_empty(out.shape, found.dtype)
            out[..., : stop - start] = found
        out[..., max(stop - start, 0) :] = 0
        return out


def source_of(given: WeightSource | Sequence[str]) -> WeightSource:
    """Turn tensor names into a source, joined along the first dimension."""
    if isinstance(given, WeightSource):
        return given
    parts = tuple(Tensor(name) for name in given)
    return parts[0] if len(parts) == 1 else Joined(parts)


def cut(part: WeightSource, start: int, stop: int, *, of: int) -> WeightSource:
    """Rows [start, stop) of a tensor with `of` rows."""
    return GroupRows(part, size=of, start=start, stop=stop)


def _turned(dimensions: Sequence[Any]) -> tuple[Any, ...]:
    *outer, rows, columns = dimensions
    return (*outer, columns, rows)


def _replace(region: Region, axis: int, part: slice) -> Region:
    return (*region[:axis], part, *region[axis + 1 :])
