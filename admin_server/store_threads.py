"""Blocking calls on threads of their own: a store that hangs holds up nobody but its callers.

A thread that hangs cannot be ended, so there are at most so many: beyond that a call is refused at
once. asyncio's own pool is not used, because a few hung calls would starve whoever else needs it.
Knows nothing of what is called.
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
    """So many calls have not come back that no further one is begun."""


class StoreThreads:
    """The threads of one store: one per call, because calls are few and a hung one is lost."""

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
        """What the call returns or raises. Raises TooManyCalls.

        Who is cancelled no longer waits; the call itself runs on, and counts until it ends.
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

        # A daemon, or a hung call would keep the process from its exit.
        thread = threading.Thread(target=work, name="store call", daemon=True)
        try:
            thread.start()
        except RuntimeError as exc:  # the machine has no thread left
            self._end()
            raise TooManyCalls(str(exc)) from exc
        _started.add(thread)
        return await asyncio.wrap_future(done)

    def _begin(self) -> None:
        with self._lock:
            if self._under_way >= self._limit:
                raise TooManyCalls(f"{self._under_way} calls to it have not come back")
            self._under_way += 1

    def _end(self) -> None:
        with self._lock:
            self._under_way -= 1


@atexit.register
def _let_calls_end() -> None:
    """A call that comes back from native code while Python ends would abort the process."""
    deadline = time.monotonic() + _EXIT_GRACE_S
    for thread in [*_started]:
        thread.join(max(0.0, deadline - time.monotonic()))
