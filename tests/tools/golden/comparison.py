"""Compares arrays that were made again with those of tests/golden."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

# Another release of a library sums in another order; on one machine most arrays are equal.
CLOSE = 2e-5
_HOW = "how"  # names the releases that made a file


def differences(made: Path, kept: Path) -> Iterator[str]:
    """Yield what differs between two folders' npz files, by file and array."""
    files = sorted(made.rglob("*.npz"))
    if not files:
        yield f"{made}: no array was made"
    for file in files:
        name = file.relative_to(made)
        if not (kept / name).exists():
            yield f"{name} is not among the golden files"
            continue
        with np.load(file) as one, np.load(kept / name) as other:
            for array in sorted({*one.files} ^ {*other.files}):
                yield f"{name}: {array} is in one of them only"
            for array in sorted({*one.files} & {*other.files} - {_HOW}):
                yield from _different(f"{name}: {array}", one[array], other[array])


def _different(name: str, one: np.ndarray, other: np.ndarray) -> Iterator[str]:
    if one.shape != other.shape:
        yield f"{name} has the shape {one.shape}, not {other.shape}"
    elif one.dtype.kind not in "fV" or one.dtype != other.dtype:
        if not np.array_equal(one, other):
            yield f"{name} is not equal"
    elif one.dtype.kind == "f" and not np.allclose(one, other, rtol=0, atol=CLOSE):
        yield f"{name} differs by up to {np.abs(one - other).max():.2g}"
