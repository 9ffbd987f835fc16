"""Takes each request to a replica, and to another one if that is lost or full.

An answer that has begun goes on at the other one after its last token. `Replicas` says which one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar

from sax.client.attempts import (
    ANY_ROUTE,
    Attempts,
    ResumableAnswer,
    RetryLimits,
    Route,
    Suspects,
    shorter,
)
from sax.client.connection import ModelServerConnection
from sax.client.replicas import AdminSource, Explain, Replicas
from sax.client.routing import ANYWHERE, Affinity, affinity_of, current_session, within_session
from sax.errors import NotLoaded, ReplicaLost, SaxError
from sax.names import ModelId
from sax.types import GenerateRequest, TokenChunk

Answer = TypeVar("Answer")


class Locator:
    """Locator for a cell's models. Use and close it in one event loop."""

    def __init__(
        self,
        source: AdminSource,
        explain: Explain,
        patience: RetryLimits | None = None,
        preferred: str = "",
    ) -> None:
        """`explain` returns the error for a model id that has no usable replica. `preferred` is the
        host:port of the replica to try first, as the admin lists it."""
        self._patience = patience or RetryLimits()
        self.replicas = Replicas(source, explain, self._patience.most_held, preferred)
        self._suspects = Suspects()

    async def generate(
        self, request: GenerateRequest, timeout_s: float | None = None
    ) -> AsyncGenerator[TokenChunk, None]:
        """Stream one answer; closing the iterator cancels it on the server.

        When its replica is lost or leaves, another one goes on after what arrived.
        """
        answer, loop = ResumableAnswer(request), asyncio.get_running_loop()
        limit_s, model_id = shorter(request.timeout_s, timeout_s), request.model_id
        attempts = self._begin(model_id, limit_s, ANY_ROUTE, answer)
        affinity = _affinity(request)
        while True:
            async with self._suspects.turn(attempts) as answer.heard:
                replica = await self.replicas.best(model_id, attempts, ANY_ROUTE, affinity)
                chunks = replica.generate(answer.rest, attempts.left_s)
                try:
                    async with aclosing(chunks):
                        async for chunk in chunks:
                            answer.add(chunk, loop.time())
                            yield chunk
                        return
                except SaxError as error:
                    self._failed(model_id, replica, attempts, error)

    async def generate_to(
        self,
        request: GenerateRequest,
        sink: Callable[[TokenChunk], None],
        timeout_s: float | None = None,
    ) -> None:
        """Like `generate`, but calls `sink` with each chunk. Cancelling cancels on the server."""
        answer, loop = ResumableAnswer(request), asyncio.get_running_loop()

        def pass_on(chunk: TokenChunk) -> None:
            answer.add(chunk, loop.time())
            sink(chunk)

        async def ask(replica: ModelServerConnection, left_s: float | None) -> None:
            await replica.generate_to(answer.rest, pass_on, left_s)

        limit_s = shorter(request.timeout_s, timeout_s)
        affinity = _affinity(request)
        await self.call(request.model_id, ask, limit_s, answer=answer, affinity=affinity)

    async def call(
        self,
        model_id: str,
        ask: Callable[[ModelServerConnection, float | None], Awaitable[Answer]],
        timeout_s: float | None = None,
        route: Route = ANY_ROUTE,
        answer: ResumableAnswer | None = None,
        affinity: Affinity = ANYWHERE,
    ) -> Answer:
        """Await `ask` on a ready replica; retry on another if it fails, with new patience each time
        that a part of the answer has arrived."""
        attempts = self._begin(model_id, timeout_s, route, answer)
        affinity = affinity if affinity.session else within_session(model_id, affinity)
        while True:
            async with self._suspects.turn(attempts) as heard:
                if answer is not None:
                    answer.heard = heard
                replica = await self.replicas.best(model_id, attempts, route, affinity)
                try:
                    answered = await ask(replica, attempts.left_s)
                except SaxError as error:
                    self._failed(model_id, replica, attempts, error)
                else:
                    if heard is not None:
                        heard()
                    return answered

    async def close(self) -> None:
        """Close all connections; requests in progress fail with Cancelled."""
        await self.replicas.close()

    def _begin(
        self,
        model_id: str,
        timeout_s: float | None,
        route: Route,
        answer: ResumableAnswer | None,
    ) -> Attempts:
        ModelId.parse(model_id)
        patience = self._patience
        if route.fail_fast:
            patience = replace(patience, attempts=1, holds=False)
        name = f"request {answer.request_id}" if answer is not None else f"a request of {model_id}"
        return Attempts(patience, timeout_s, answer, name)

    def _failed(
        self, model_id: str, replica: ModelServerConnection, attempts: Attempts, error: SaxError
    ) -> None:
        if isinstance(error, NotLoaded | ReplicaLost):
            self.replicas.doubt(model_id, replica.address)
        attempts.failed(replica.address, error)


def _affinity(request: GenerateRequest) -> Affinity:
    if request.session or current_session():  # the prompt is not looked at
        return within_session(request.model_id, ANYWHERE, request.session)
    return affinity_of(request)
