"""Run blocking store calls on their own threads, so that a hung store only blocks its callers.

A hung thread cannot be ended, so their number is limited: beyond it calls are refused at once.
asyncio's own pool is not used, because a few hung calls would starve its other users.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")

_EXIT_GRACE_S = 2.0
_started: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


class TooManyCalls(OSError):
    """Too many calls have not returned; no further one is started."""


class StoreThreads:
    """Threads of one store: one per call, because calls are few and a hung one is lost."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._under_way = 0
        self._lock = threading.Lock()

    async def run(
        self,
        call: Callable[Arguments, Result],
        *args: Arguments.args,
        **options: Arguments.kwargs,
    ) -> Result:
        """Return or raise what the call does. Raises TooManyCalls.

        A cancelled caller stops waiting; the call itself runs on, and counts until it ends.
        """
        self._begin()
        done: Future[Result] = Future()
        done.set_running_or_notify_cancel()  # from here on it cannot be cancelled

        def work() -> None:
            try:
                result = call(*args, **options)
            except BaseException as exc:
                self._end()
                done.set_exception(exc)
            else:
                self._end()
                done.set_result(result)

        # A daemon thread, so that a hung call cannot keep the process from exiting.
        thread = threading.Thread(target=work, name="store call", daemon=True)
        try:
            thread.start()
        except RuntimeError as exc:  # the machine is out of threads
            self._end()
            raise TooManyCalls(str(exc)) from exc
        _started.add(thread)
        return await asyncio.wrap_future(done)

    def _begin(self) -> None:
        with self._lock:
            if self._under_way >= self._limit:
                raise TooManyCalls(f"{self._under_way} calls to it have not returned")
            self._under_way += 1

    def _end(self) -> None:
        with self._lock:
            self._under_way -= 1


@atexit.register
def _let_calls_end() -> None:
    """Wait for calls: one returning from native code during shutdown aborts the process."""
    deadline = time.monotonic() + _EXIT_GRACE_S
    for thread in [*_started]:
        thread.join(max(0.0, deadline - time.monotonic()))
