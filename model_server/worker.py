"""One daemon thread that runs blocking calls in order, for an event loop that waits for them.

A daemon: a user's function that never returns must not keep a drained process alive. Knows nothing
of what it runs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

Result = TypeVar("Result")
Job = tuple[Future[Any], Callable[[], Any]]


class Worker:
    """Lives on the event loop; only the jobs run elsewhere."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def run(self, job: Callable[[], Result]) -> asyncio.Future[Result]:
        """What the job returns, or raises: it has its place in the order once this returns.

        A job that is cancelled before it began is left out.
        """
        future: Future[Result] = Future()
        self._jobs.put((future, job))
        return asyncio.wrap_future(future)

    def stop(self) -> None:
        """End the thread after the jobs it has."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (next_job := self._jobs.get()) is not None:
            future, job = next_job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(job())
            except Exception as exc:
                future.set_exception(exc)
            except BaseException as exc:  # a SystemExit must not end the event loop
                future.set_exception(RuntimeError(f"the job raised {type(exc).__name__}: {exc}"))
            del next_job, future, job  # nothing of a request is kept while waiting for the next
