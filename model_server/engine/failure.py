"""Turns an exception of a load, or of an engine, into the error that clients and the status see."""

from __future__ import annotations

from sax.errors import Internal, LoadFailed, ReplicaLost, SaxError, ShuttingDown

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


def stopped(failure: BaseException) -> SaxError:
    """Return what callers of an engine read that stopped for this reason."""
    if isinstance(failure, ReplicaLost | ShuttingDown):
        return failure  # its text is complete
    return Internal(
        f"the engine stopped: {type(failure).__name__}: {failure}; unload and load the model again"
    )
