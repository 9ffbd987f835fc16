"""A box inside a tensor: what one device of a mesh holds of it. Pure arithmetic on slices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# One slice per dimension, each with a start, a stop and no step.
Region = tuple[slice, ...]


def whole(shape: Sequence[int]) -> Region:
    """The region that is all of a tensor."""
    return tuple(slice(0, size) for size in shape)


def explicit(region: Sequence[slice], shape: Sequence[int]) -> Region:
    """The same region with every start and stop written out; missing dimensions are whole."""
    full = (*region, *(slice(None) for _ in shape[len(region) :]))
    return tuple(slice(*part.indices(size)[:2]) for part, size in zip(full, shape, strict=True))


def deliver(numbers: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    """What a reader hands over: the numbers themselves, or `out` filled with them, in its dtype."""
    if out is None:
        return numbers
    out[...] = numbers
    return out


def region_shape(region: Region) -> tuple[int, ...]:
    """The shape of what a region cuts out."""
    return tuple(part.stop - part.start for part in region)
