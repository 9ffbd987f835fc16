"""One thread per session that waits for its arrays, so that nothing else does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

Task = Callable[[], None]


class WaitingThread:
    """Runs tasks one after the other. They must not raise."""

    def __init__(self, name: str) -> None:
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(self, task: Task) -> None:
        self._tasks.put(task)

    def end(self) -> None:
        """End after the tasks that wait."""
        self._tasks.put(None)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
            del task  # it holds arrays
