"""Counts every compilation that happens outside a load: there must be none.

XLA reports each compile through jax.monitoring, in the thread that caused it. "Inside a load" is
a context variable, so a load does not hide another model's mistake, and a load's own helper
threads carry the mark when they run in a copy of its context.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
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
        self._loading = contextvars.ContextVar("loading", default=False)
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """Compiles of this context are expected until the block ends."""
        mark = self._loading.set(True)
        try:
            yield
        finally:
            self._loading.reset(mark)

    def stop(self) -> None:
        """Listen no more."""
        jax.monitoring.unregister_event_duration_listener(self._listen)

    def _listen(self, event: str, duration_secs: float, **_: Any) -> None:
        if event != _EVENT or self._loading.get():
            return
        self.while_serving += 1
        logger.error("a program was compiled while serving (%.2f s): this is a bug", duration_secs)
        if self._strict:
            raise RuntimeError("a program was compiled while serving")
