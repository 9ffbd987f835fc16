"""Which event loop a server process runs on. Knows nothing of what runs there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """For `asyncio.Runner`: uvloop if there is one (its turns cost less), else None."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
