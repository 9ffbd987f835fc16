"""Regions: boxes inside a tensor, such as the part that one device of a mesh holds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# One slice per dimension, each with a start and a stop; all but the first may have a step.
Region = tuple[slice, ...]


def whole(shape: Sequence[int]) -> Region:
    return tuple(slice(0, size) for size in shape)


def explicit(region: Sequence[slice], shape: Sequence[int]) -> Region:
    """Return the region with every start and stop filled in; missing dimensions are whole."""
    full = (*region, *(slice(None) for _ in shape[len(region) :]))
    return tuple(
        slice(*part.indices(size)) if part.step else slice(*part.indices(size)[:2])
        for part, size in zip(full, shape, strict=True)
    )


def deliver(numbers: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    if out is None:
        return numbers
    out[...] = numbers
    return out


def region_shape(region: Region) -> tuple[int, ...]:
    return tuple(len(range(part.start, part.stop, part.step or 1)) for part in region)
