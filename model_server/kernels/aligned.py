"""Host arrays aligned so that a CPU device can use them without a copy (XLA copies others)."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

ALIGNMENT = 64  # bytes
_BLOCK = 64 * 2**20  # bytes; numpy asks for large pages from 4 MiB on


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


def uses_host_memory(mesh: Any) -> bool:
    """True for a mesh of one CPU device of this process: an aligned array is its own as it is."""
    first, *others = mesh.devices.flat
    here = not others and first.process_index == first.client.process_index()
    return here and first.platform == "cpu" and "proxy" not in first.client.runtime_type


class WeightMemory:
    """Memory for weights, cut from blocks. Thread-safe.

    The system takes four times as long to hand out small pages as large ones, and longer than it
    takes to fill them. A block is freed with the last of its arrays; until then
    `sharing.freeing` gives back the pages of each.
    """

    def __init__(self) -> None:
        self._left = np.empty(0, np.uint8)
        self._guard = threading.Lock()

    def empty(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """As `aligned_empty`."""
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        if size > _BLOCK // 2:
            return aligned_empty(shape, kind)
        with self._guard:
            if self._left.nbytes < size:
                self._left = aligned_empty((_BLOCK,), np.uint8)
            taken, self._left = self._left[:size], self._left[-(-size // ALIGNMENT) * ALIGNMENT :]
        return taken.view(kind).reshape(shape)


class BandMemory(threading.local):
    """Memory for one band of a weight at a time in each thread, which the next one overwrites."""

    def __init__(self) -> None:
        self._held = np.empty(0, np.uint8)

    def empty(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """As `aligned_empty`."""
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        if self._held.nbytes < size:
            self._held = aligned_empty((size,), np.uint8)
        return self._held[:size].view(kind).reshape(shape)
