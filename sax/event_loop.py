"""Event loop choice for server processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return `asyncio.Runner`'s loop factory: uvloop's, which is faster, if installed; else
    None."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
