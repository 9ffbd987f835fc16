"""Host arrays aligned so that a CPU device can use them without a copy (XLA copies others)."""

from __future__ import annotations

import math
import mmap
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

ALIGNMENT = 64  # bytes
_BLOCK = 64 * 2**20  # bytes; numpy asks for large pages from 4 MiB on
_LARGE_PAGE = 2 * 2**20


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


def _new_block(size: int) -> np.ndarray:
    return aligned_empty((size,), np.uint8)


class WeightMemory:
    """Memory for weights, cut from blocks. Thread-safe.

    The system takes four times as long to hand out small pages as large ones, and longer than it
    takes to fill them. A block is freed with the last of its arrays; until then
    `sharing.freeing` gives back the pages of each.
    """

    def __init__(self, block: Callable[[int], np.ndarray] = _new_block) -> None:
        """block: makes a block of so many bytes."""
        self._block = block
        self._left = np.empty(0, np.uint8)
        self._guard = threading.Lock()

    def empty(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """As `aligned_empty`."""
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        if size > _BLOCK // 2:
            return self._block(size).view(kind).reshape(shape)
        with self._guard:
            if self._left.nbytes < size:
                self._left = self._block(_BLOCK)
            taken, self._left = self._left[:size], self._left[-(-size // ALIGNMENT) * ALIGNMENT :]
        return taken.view(kind).reshape(shape)


class SpareBlocks:
    """Blocks that are used again once nothing lies in them any more. Thread-safe.

    The system clears memory before it hands it out, which takes longer than all else that new
    weights need. What is freed lazily (`sharing.freeing`) stays until the system runs short.
    """

    def __init__(self) -> None:
        self._spare: defaultdict[int, list[mmap.mmap]] = defaultdict(list)  # by size
        self._places: list[range] = []  # addresses of all blocks, in use or not

    def block(self, size: int) -> np.ndarray:
        """Return u8[size], aligned."""
        if not hasattr(mmap, "MADV_HUGEPAGE"):  # nothing is freed lazily but on Linux
            return _new_block(size)
        whole = -(-size // _LARGE_PAGE) * _LARGE_PAGE
        try:
            held = self._spare[whole].pop()
        except IndexError:
            held = self._mapped(whole)
        made = np.frombuffer(held, np.uint8)
        # Without a lock: it is called wherever garbage is collected.
        weakref.finalize(made, self._spare[whole].append, held).atexit = False
        return made[:size]

    def holds(self, address: int) -> bool:
        return any(address in place for place in self._places)

    def spare(self) -> list[np.ndarray]:
        """Take all blocks in which nothing lies."""
        return [self.block(size) for size, held in list(self._spare.items()) for _ in list(held)]

    def _mapped(self, size: int) -> mmap.mmap:
        held = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        held.madvise(mmap.MADV_HUGEPAGE)
        start = np.frombuffer(held, np.uint8).ctypes.data
        self._places.append(range(start, start + size))
        return held


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
