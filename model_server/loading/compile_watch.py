"""Counts compilations outside loads: there must be none.

XLA reports each compile through jax.monitoring, in the thread that caused it. "Inside a load" is a
context variable, so one model's load does not hide another model's compile, and a load's helper
threads keep the mark if they run in a copy of its context. Compiles inside loads are counted too.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import threading
from collections.abc import Iterator
from typing import Any

import jax

logger = logging.getLogger(__name__)
_EVENT = "/jax/core/compile/backend_compile_duration"


class LoadCompiles:
    """Programs compiled, or read from jax's cache, during one load."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: dict[str, list[float]] = {}

    def add(self, name: str, seconds: float) -> None:
        with self._lock:
            self._seconds.setdefault(name, []).append(seconds)

    def count(self, name: str) -> int:
        return len(self._seconds.get(name, ()))

    def __str__(self) -> str:
        took = sorted(self._seconds.items(), key=lambda item: sum(item[1]), reverse=True)
        parts = [f"{len(each)} of {name} in {sum(each):.1f} s" for name, each in took]
        return ", ".join(parts) or "nothing"


class CompileWatch:
    """Create one per process, before the first load."""

    def __init__(self, *, strict: bool = False) -> None:
        """strict: a compile while serving raises in the thread that caused it."""
        self.while_serving = 0
        self._strict = strict
        self._loading: contextvars.ContextVar[LoadCompiles | None] = contextvars.ContextVar(
            "loading", default=None
        )
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    @contextlib.contextmanager
    def loading(self) -> Iterator[LoadCompiles]:
        """Expect and count compiles in this context until the block ends."""
        compiles = LoadCompiles()
        mark = self._loading.set(compiles)
        try:
            yield compiles
        finally:
            self._loading.reset(mark)

    def stop(self) -> None:
        jax.monitoring.unregister_event_duration_listener(self._listen)

    def _listen(self, event: str, duration_secs: float, **about: Any) -> None:
        if event != _EVENT:
            return
        name = str(about.get("fun_name", "a function"))
        if (compiles := self._loading.get()) is not None:
            compiles.add(name, duration_secs)
            return
        self.while_serving += 1
        logger.error("%s was compiled while serving (%.2f s): this is a bug", name, duration_secs)
        if self._strict:
            raise RuntimeError("a program was compiled while serving")
