"""Lets the timers of a library's threads fire late, so that they wake the processor less often.

jaxlib's client of a proxy server has a thread that sends waiting deletions every 50 us, 20,000
times a second for as long as it is connected: a fifth of a core on virtual machines. Whatever else
is sent takes them along, so the thread may as well come a millisecond later.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator

LATE_NS = 1_000_000
_SET, _GET = 29, 30  # PR_SET_TIMERSLACK and PR_GET_TIMERSLACK of prctl(2)


@contextlib.contextmanager
def late_timers() -> Iterator[None]:
    """Let timers of threads that begin meanwhile fire up to LATE_NS too late, on Linux."""
    if not sys.platform.startswith("linux"):
        yield
        return
    prctl = ctypes.CDLL(None).prctl
    before = prctl(_GET)
    prctl(_SET, ctypes.c_ulong(LATE_NS))
    try:
        yield
    finally:
        prctl(_SET, ctypes.c_ulong(before))
