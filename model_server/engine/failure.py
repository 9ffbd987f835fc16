"""Turns any exception of a load into the error that clients and the status see."""

from __future__ import annotations

from sax.errors import LoadFailed, SaxError

_MAX_REASON = 500


class DevicesLost(Exception):
    """A runner's devices are gone with what they computed; another runner can compute it again."""


def as_load_error(exc: BaseException) -> SaxError:
    """Convert to the error that clients and the status page show: one line, no traceback."""
    if isinstance(exc, SaxError):
        return exc
    first_line = str(exc).strip().partition("\n")[0][:_MAX_REASON]
    if isinstance(exc, MemoryError):
        return LoadFailed(
            f"out of memory while loading ({first_line or 'no details'}): "
            "lower --kv_cache_bytes or --slots, or unload another model"
        )
    return LoadFailed(f"{type(exc).__name__}: {first_line}" if first_line else type(exc).__name__)
