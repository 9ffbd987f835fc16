"""A thread that runs tasks one after the other, so that its owner waits for none of them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

logger = logging.getLogger(__name__)

Task = Callable[[], object]


class WaitingThread:
    """Runs tasks in their order. What they raise is logged."""

    def __init__(self, name: str) -> None:
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(self, task: Task) -> None:
        self._tasks.put(task)

    def end(self, wait_s: float = 0.0) -> None:
        """End after the tasks that it has; wait for that up to `wait_s` seconds."""
        self._tasks.put(None)
        if wait_s:
            self._thread.join(wait_s)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except Exception:
                logger.exception("a task of the thread %s failed", self._thread.name)
            del task  # it holds arrays
