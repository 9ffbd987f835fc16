"""Memory that the C library keeps goes back to the system."""

from __future__ import annotations

import ctypes
import os
import time

import pytest

from sax import memory_return
from tests.end_to_end.cell import resident

BLOCK, BLOCKS = 100 << 10, 2000  # below the size that is mapped apart

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = (ctypes.c_void_p,)


def freed_below_the_top_of_the_heap() -> int:
    """Free blocks below one that stays, so that the heap cannot shrink; return the last block."""
    blocks = [libc.malloc(BLOCK) for _ in range(BLOCKS)]
    for block in blocks:
        ctypes.memset(block, 1, BLOCK)
    for block in blocks[:-1]:
        libc.free(block)
    return blocks[-1]


@pytest.mark.skipif(not hasattr(libc, "malloc_trim"), reason="the C library is not glibc")
def test_what_a_large_message_took_is_returned() -> None:
    last = freed_below_the_top_of_the_heap()
    held = resident(os.getpid())
    memory_return.after(memory_return.LARGE - 1)
    memory_return.after(memory_return.LARGE)
    memory_return.after(memory_return.LARGE)  # once is enough
    while resident(os.getpid()) > held - BLOCK * BLOCKS // 2:
        time.sleep(0.05)  # the test's own time limit ends a vain wait
    libc.free(last)
