"""One thread that runs jobs in the order of arrival."""

from __future__ import annotations

import asyncio
import atexit
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")
_Jobs = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]
_LAST_S = 2.0  # for the jobs that run when the interpreter ends
_running: set[Future[Any]] = set()
_ending = threading.Event()


def jobs_run() -> bool:
    """True while some worker of this process runs a job."""
    return bool(_running)


@atexit.register
def _end_jobs() -> None:
    """Let jobs end: a thread that comes back from native code to an interpreter that has ended
    crashes the process."""
    _ending.set()
    wait(set(_running), _LAST_S)


class Worker:
    """Any thread may call it; the thread starts with the first job.

    A daemon thread: a compile that cannot be stopped must not keep a drained process alive.
    """

    def __init__(self, name: str, stack: int = 0) -> None:
        """stack: bytes for the thread; 0: what the system gives."""
        self._name = name
        self._stack = stack
        self._jobs: _Jobs = SimpleQueue()
        self._starting = threading.Lock()
        self._started = False
        self.stop = weakref.finalize(self, self._jobs.put, None)  # after the jobs that are queued

    @classmethod
    def once(cls, name: str, job: Callable[[], Result], stack: int = 0) -> Future[Result]:
        """Run one job on a thread of its own, with so many bytes of stack."""
        worker = cls(name, stack)
        future = worker.submit(job)
        worker.stop()
        return future

    def submit(
        self,
        job: Callable[Arguments, Result],
        *args: Arguments.args,
        **options: Arguments.kwargs,
    ) -> Future[Result]:
        """Queue a job; one that is cancelled before it began is skipped."""
        future: Future[Result] = Future()
        self._jobs.put((future, lambda: job(*args, **options)))
        with self._starting:
            if not self._started:
                self._started = True
                _start(self._name, self._jobs, self._stack)
        return future

    def run(self, job: Callable[[], Result]) -> asyncio.Future[Result]:
        """Queue a job from the event loop; no exception of the job can end the loop."""
        return asyncio.wrap_future(self.submit(_contained, job))


_STACK_SIZE = threading.Lock()  # it holds for all threads that are started


def _start(name: str, jobs: _Jobs, stack: int) -> None:
    thread = threading.Thread(target=_work, args=(jobs,), name=name, daemon=True)
    with _STACK_SIZE:
        before = threading.stack_size(stack)
        try:
            thread.start()
        finally:
            threading.stack_size(before)


def _work(jobs: _Jobs) -> None:
    # References only the queue, so that an unreferenced worker is stopped.
    while (next_job := jobs.get()) is not None and not _ending.is_set():
        future, job = next_job
        if future.set_running_or_notify_cancel():
            _running.add(future)
            try:
                future.set_result(job())
            except BaseException as exc:
                future.set_exception(exc)
            finally:
                _running.discard(future)
        del next_job, future, job  # keep no request alive while waiting


def _contained(job: Callable[[], Result]) -> Result:
    try:
        return job()
    except Exception:
        raise
    except BaseException as exc:  # asyncio would end with a SystemExit
        raise RuntimeError(f"the job raised {type(exc).__name__}: {exc}") from exc
