"""Host arrays aligned so that a CPU device can use them without a copy (XLA copies others)."""

from __future__ import annotations

import math
import mmap
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

ALIGNMENT = 64  # bytes
BLOCK = 64 * 2**20  # bytes; numpy asks for large pages from 4 MiB on
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


def _in_large_pages(size: int) -> int:
    return -(-size // _LARGE_PAGE) * _LARGE_PAGE


class WeightMemory:
    """Memory for weights, cut from blocks. Thread-safe.

    The system takes four times as long to hand out small pages as large ones, and longer than it
    takes to fill them. A block is freed with the last of its arrays; until then
    `sharing.freeing` gives back the pages of each.
    """

    def __init__(self, block: Callable[[int], np.ndarray] = _new_block, most: int = BLOCK) -> None:
        """block: makes a block of so many bytes. most: bytes of all arrays, if they are few."""
        self._block = block
        self._size = min(_in_large_pages(most), BLOCK)
        self._left = np.empty(0, np.uint8)
        self._guard = threading.Lock()

    def empty(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """As `aligned_empty`."""
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        if size > self._size // 2:
            return self._block(size).view(kind).reshape(shape)
        with self._guard:
            if self._left.nbytes < size:
                self._left = self._block(self._size)
            taken, self._left = self._left[:size], self._left[-(-size // ALIGNMENT) * ALIGNMENT :]
        return taken.view(kind).reshape(shape)


class SpareBlocks:
    """Blocks that are used again once nothing lies in them any more. Thread-safe.

    The system clears memory before it hands it out, which takes longer than all else that new
    weights need. What is freed lazily (`sharing.freeing`) stays until the system runs short.
    """

    def __init__(self) -> None:
        self._spare: list[mmap.mmap] = []  # the last that was freed is the last
        self._places: list[range] = []  # addresses of blocks, in use or not
        self._guard = threading.Lock()

    def block(self, size: int) -> np.ndarray:
        """Return u8[size], aligned."""
        if not hasattr(mmap, "MADV_HUGEPAGE"):  # nothing is freed lazily but on Linux
            return _new_block(size)
        whole = _in_large_pages(size)
        with self._guard:
            held = self._taken(whole) or self._mapped(whole)
        made = np.frombuffer(held, np.uint8)
        # Without the lock: garbage may be collected while this thread holds it.
        weakref.finalize(made, self._spare.append, held).atexit = False
        return made[:size]

    def holds(self, address: int) -> bool:
        return any(address in place for place in self._places)

    def drop(self, most: int = 0) -> list[np.ndarray]:
        """Forget blocks in which nothing lies, long unused ones first, until those left have `most`
        bytes; return the others, whose memory goes with them."""
        dropped: list[np.ndarray] = []
        with self._guard:
            while self._spare and sum(map(len, self._spare)) > most:
                dropped.append(np.frombuffer(self._spare.pop(0), np.uint8))
                self._places.remove(_place(dropped[-1]))
        return dropped

    def _taken(self, size: int) -> mmap.mmap | None:
        for held in reversed(self._spare.copy()):
            if len(held) == size:
                self._spare.remove(held)
                return held
        return None

    def _mapped(self, size: int) -> mmap.mmap:
        held = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        held.madvise(mmap.MADV_HUGEPAGE)
        self._places.append(_place(np.frombuffer(held, np.uint8)))
        return held


def _place(block: np.ndarray) -> range:
    return range(block.ctypes.data, block.ctypes.data + block.nbytes)


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
