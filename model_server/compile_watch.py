"""Counts every compilation that happens outside a load: there must be none.

XLA reports each compile through jax.monitoring, in the thread that caused it, so "inside a load"
is a thread's own mark and a load does not hide another model's mistake.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

import jax

logger = logging.getLogger(__name__)
_EVENT = "/jax/core/compile/backend_compile_duration"


class CompileWatch:
    """Install once per process, before the first load."""

    def __init__(self, *, strict: bool = False) -> None:
        """strict: a compile while serving raises in the thread that caused it."""
        self.while_serving = 0
        self._strict = strict
        self._thread = threading.local()
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """Compiles of this thread are expected until the block ends."""
        self._thread.loading = True
        try:
            yield
        finally:
            self._thread.loading = False

    def stop(self) -> None:
        """Listen no more."""
        jax.monitoring.unregister_event_duration_listener(self._listen)

    def _listen(self, event: str, duration_s: float, **_: Any) -> None:
        if event != _EVENT or getattr(self._thread, "loading", False):
            return
        self.while_serving += 1
        logger.error("a program was compiled while serving (%.2f s): this is a bug", duration_s)
        if self._strict:
            raise RuntimeError("a program was compiled while serving")
