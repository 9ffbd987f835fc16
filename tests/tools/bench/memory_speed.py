"""How fast this machine reads memory now: the floor under every decode step."""

from __future__ import annotations

import threading
import time

import numpy as np

_BYTES = 256 * 2**20  # far beyond any cache
_READS = 6


def read_gb_per_s(threads: int) -> float:
    """Best of three tries, `threads` threads each reading their share."""
    numbers = np.ones(_BYTES // 4, np.float32)
    return max(_one_try(numbers, threads) for _ in range(3))


def _one_try(numbers: np.ndarray, threads: int) -> float:
    def read(share: np.ndarray) -> None:
        for _ in range(_READS):
            share.sum()

    readers = [
        threading.Thread(target=read, args=(part,)) for part in np.array_split(numbers, threads)
    ]
    began_s = time.perf_counter()
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    return _READS * numbers.nbytes / (time.perf_counter() - began_s) / 1e9
