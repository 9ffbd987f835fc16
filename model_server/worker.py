"""One daemon thread that runs blocking calls in order for an event loop.

A daemon, so that a user's function that never returns cannot keep a drained process alive.
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
    """Runs on the event loop; only the jobs run on the thread."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def run(self, job: Callable[[], Result]) -> asyncio.Future[Result]:
        """Queue a job and return a future of its result; jobs run in the order of calls.

        A job cancelled before it began is skipped.
        """
        future: Future[Result] = Future()
        self._jobs.put((future, job))
        return asyncio.wrap_future(future)

    def stop(self) -> None:
        """End the thread after the queued jobs."""
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
            del next_job, future, job  # keep no request alive while waiting
