"""Returns memory to the system after a large message or an unloaded model.

glibc keeps what these took for later: a few hundred megabytes in a server that got many large
messages at once. Trimming takes some milliseconds, so it is done a moment later, once for all that
came meanwhile, on a thread.
"""

from __future__ import annotations

import ctypes
import threading
from functools import cache

LARGE = 1 << 20  # bytes of a message after which memory is returned
_AFTER_S = 0.3  # by then the message has been dealt with, most likely
_lock = threading.Lock()
_timer: threading.Timer | None = None


def after(size: int) -> None:
    """Return memory soon if a message of so many bytes is large."""
    if size >= LARGE:
        soon()


def soon() -> None:
    """Return memory in a moment. Any thread may call this."""
    global _timer
    with _lock:
        if _timer is None:
            _timer = threading.Timer(_AFTER_S, _trim)
            _timer.daemon = True
            _timer.start()


def _trim() -> None:
    global _timer
    with _lock:
        _timer = None
    if trim := _malloc_trim():
        trim(0)


@cache
def _malloc_trim() -> ctypes._NamedFuncPointer | None:  # pyright: ignore[reportPrivateUsage]
    """None where the C library is not glibc."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
