"""Keeps the memory of steps in the process between steps, on Linux with glibc.

XLA on CPU allocates the temporaries and results of every call anew. glibc gives blocks of megabytes
back to the system when they are freed, so that each step faults in every page again: at batch 32
that took 5 of the 7 ms in which tokens are chosen.
"""

from __future__ import annotations

import ctypes

# The parameters of mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_KEPT_BYTES = 256 * 2**20  # free memory that the process may keep at the end of its heap
_LARGE_BYTES = 64 * 2**20  # blocks from this size on, as those of weights, are returned when freed


def keep_freed_memory() -> bool:
    """Set the allocator's thresholds; False where it has none. Call before threads allocate.

    Further arenas would give their memory back at thresholds that cannot be set.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return False
    wanted = ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, _LARGE_BYTES), (_TRIM_THRESHOLD, _KEPT_BYTES))
    return 0 not in [set_option(name, value) for name, value in wanted]
