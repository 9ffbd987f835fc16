"""Runs an event loop on its own thread, for blocking programs."""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from sax.errors import Cancelled

Result = TypeVar("Result")
Item = TypeVar("Item")

_CLOSED = "the client was closed"


@dataclass(frozen=True, slots=True)
class _End:
    """Marks the end of an iteration's queue."""

    error: BaseException | None


class LoopThread:
    """Runs coroutines for callers on any thread until closed."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        # Daemon: a program that forgets to close its client can still exit.
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        return self._loop.is_closed()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine and return its result; interrupting the caller cancels it."""
        future = self._submit(work)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise Cancelled(_CLOSED) from None
        finally:
            future.cancel()

    def iterate(self, items: AsyncGenerator[Item, None]) -> Iterator[Item]:
        """Iterate over an async generator; closing the iterator closes the generator."""
        inbox: queue.SimpleQueue[Item | _End] = queue.SimpleQueue()
        pump = self._submit(_pump(items, inbox))
        try:
            while not isinstance(item := inbox.get(), _End):
                yield item
            if item.error is not None:
                raise item.error
        finally:
            # Do not wait: the garbage collector may close an iterator on any thread.
            pump.cancel()

    def close(self) -> None:
        """Cancel running work and end the thread. Waiting callers get Cancelled."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _submit(self, work: Coroutine[Any, Any, Result]) -> concurrent.futures.Future[Result]:
        if self._loop.is_closed():
            work.close()
            raise Cancelled(_CLOSED)
        return asyncio.run_coroutine_threadsafe(work, self._loop)


async def _pump(items: AsyncGenerator[Item, None], inbox: queue.SimpleQueue[Item | _End]) -> None:
    """Move items to another thread. The answer's length bounds the queue."""
    error: BaseException | None = Cancelled(_CLOSED)
    try:
        async with aclosing(items):
            async for item in items:
                inbox.put(item)
        error = None
    except Exception as exc:
        error = exc
    finally:
        inbox.put(_End(error))


async def _cancel_all() -> None:
    this = asyncio.current_task()
    others = [task for task in asyncio.all_tasks() if task is not this]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
