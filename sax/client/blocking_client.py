"""Blocking portal to `AsyncClient`, which runs in an event loop on a thread of its own.

Each call is written once, in AsyncClient; its signature, docstring and result carry over.
"""

# pyright: reportPrivateUsage=false
# The two functions that make Client's methods come before the class.

from __future__ import annotations

import atexit
import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from sax.client.async_client import AsyncClient
from sax.client.attempts import RetryLimits
from sax.client.loop_thread import LoopThread

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
    rollback = _blocking(AsyncClient.rollback)
    versions = _blocking(AsyncClient.versions)
    events = _blocking(AsyncClient.events)
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
    tokenize = _blocking(AsyncClient.tokenize)
    tokenize_texts = _blocking(AsyncClient.tokenize_texts)
    detokenize = _blocking(AsyncClient.detokenize)
    score = _blocking(AsyncClient.score)
    embed = _blocking(AsyncClient.embed)
    embed_counted = _blocking(AsyncClient.embed_counted)
    classify = _blocking(AsyncClient.classify)
    score_pairs = _blocking(AsyncClient.score_pairs)
    rerank = _blocking(AsyncClient.rerank)
    gradient = _blocking(AsyncClient.gradient)
    custom = _blocking(AsyncClient.custom)
    transcribe = _blocking(AsyncClient.transcribe)
    transcribe_stream = _iterating(AsyncClient.transcribe_stream)
    ask_service = _blocking(AsyncClient.ask_service)
    saxml_embed = _blocking(AsyncClient.saxml_embed)
    saxml_generate = _blocking(AsyncClient.saxml_generate)
    saxml_generate_counted = _blocking(AsyncClient.saxml_generate_counted)
    saxml_generate_stream = _iterating(AsyncClient.saxml_generate_stream)
