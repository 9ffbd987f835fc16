"""Host arrays aligned so that a CPU device can use them without a copy (XLA copies others)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

ALIGNMENT = 64  # bytes


def aligned_empty(shape: Sequence[int], dtype: Any) -> np.ndarray:
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(kind).reshape(shape)


def aligned(numbers: np.ndarray, dtype: Any) -> np.ndarray:
    """Return the numbers as a C-contiguous, aligned array of this dtype; copy only if needed."""
    kind = np.dtype(dtype)
    if (
        numbers.dtype == kind
        and numbers.flags.c_contiguous
        and numbers.ctypes.data % ALIGNMENT == 0
    ):
        return numbers
    out = aligned_empty(numbers.shape, kind)
    out[...] = numbers
    return out
