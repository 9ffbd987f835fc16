"""Blocking portal to `AsyncClient`, which runs in an event loop on a thread of its own.

Each call is written once, in AsyncClient; its signature, docstring and result carry over.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import functools
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from sax.client.async_client import AsyncClient
from sax.client.attempts import RetryLimits
from sax.errors import Cancelled

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


# pyright: reportPrivateUsage=false
# The two functions that make Client's methods come before the class.


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Item = TypeVar("Item")


def _blocking(
    method: Callable[Concatenate[AsyncClient, Arguments], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[Client, Arguments], Result]:
    @functools.wraps(method)
    def call(self: Client, *args: Arguments.args, **options: Arguments.kwargs) -> Result:
        return self._thread.run(method(self._client, *args, **options))

    return call


def _iterating(
    method: Callable[Concatenate[AsyncClient, Arguments], AsyncGenerator[Item, None]],
) -> Callable[Concatenate[Client, Arguments], Iterator[Item]]:
    @functools.wraps(method)
    def iterate(self: Client, *args: Arguments.args, **options: Arguments.kwargs) -> Iterator[Item]:
        return self._thread.iterate(method(self._client, *args, **options))

    return iterate


class Client:
    """Client of one cell, for any number of threads."""

    def __init__(
        self, admin: str | None = None, *, patience: RetryLimits | None = None, preferred: str = ""
    ) -> None:
        self._client = AsyncClient(admin, patience=patience, preferred=preferred)
        self._thread = LoopThread("sax-client")
        atexit.register(self.close)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the client; calls in other threads fail with Cancelled. Closing twice is fine."""
        atexit.unregister(self.close)
        if not self._thread.closed:
            self._thread.run(self._client.close())
            self._thread.close()

    # Operators
    publish = _blocking(AsyncClient.publish)
    update = _blocking(AsyncClient.update)
    unpublish = _blocking(AsyncClient.unpublish)
    promote = _blocking(AsyncClient.promote)
    abort = _blocking(AsyncClient.abort)
    update_weights = _blocking(AsyncClient.update_weights)
    pause = _blocking(AsyncClient.pause)
    resume = _blocking(AsyncClient.resume)
    sleep = _blocking(AsyncClient.sleep)
    wake = _blocking(AsyncClient.wake)
    weights = _blocking(AsyncClient.weights)
    change_weights = _blocking(AsyncClient.change_weights)
    rollback = _blocking(AsyncClient.rollback)
    versions = _blocking(AsyncClient.versions)
    events = _blocking(AsyncClient.events)
    log = _blocking(AsyncClient.log)
    list = _blocking(AsyncClient.list)
    list_all = _blocking(AsyncClient.list_all)
    cell_acl = _blocking(AsyncClient.cell_acl)
    set_cell_acl = _blocking(AsyncClient.set_cell_acl)
    servers = _blocking(AsyncClient.servers)
    overview = _blocking(AsyncClient.overview)
    rights = _blocking(AsyncClient.rights)
    stats = _blocking(AsyncClient.stats)
    wait_for_ready = _blocking(AsyncClient.wait_for_ready)
    watch = _iterating(AsyncClient.watch)

    # Requests
    generate = _iterating(AsyncClient.generate)
    generate_to = _blocking(AsyncClient.generate_to)  # the sink runs on the client's thread
    phases = _blocking(AsyncClient.phases)
    tokenize = _blocking(AsyncClient.tokenize)
    tokenize_texts = _blocking(AsyncClient.tokenize_texts)
    detokenize = _blocking(AsyncClient.detokenize)
    score = _blocking(AsyncClient.score)
    embed = _blocking(AsyncClient.embed)
    embed_counted = _blocking(AsyncClient.embed_counted)
    embed_tokens = _blocking(AsyncClient.embed_tokens)
    classify = _blocking(AsyncClient.classify)
    entities = _blocking(AsyncClient.entities)
    score_pairs = _blocking(AsyncClient.score_pairs)
    rerank = _blocking(AsyncClient.rerank)
    gradient = _blocking(AsyncClient.gradient)
    custom = _blocking(AsyncClient.custom)
    speak = _blocking(AsyncClient.speak)
    speak_stream = _iterating(AsyncClient.speak_stream)
    transcribe = _blocking(AsyncClient.transcribe)
    transcribe_stream = _iterating(AsyncClient.transcribe_stream)
    ask_service = _blocking(AsyncClient.ask_service)
    saxml_embed = _blocking(AsyncClient.saxml_embed)
    saxml_generate = _blocking(AsyncClient.saxml_generate)
    saxml_generate_counted = _blocking(AsyncClient.saxml_generate_counted)
    saxml_generate_stream = _iterating(AsyncClient.saxml_generate_stream)
