"""Reads the messages of callers that nobody knows: few at once, each within a time.

With the server's limit for one message this bounds the memory that strangers can take up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from sax.errors import DeadlineExceeded, InvalidRequest

_AT_ONCE = 8  # a probe's message takes less than a millisecond
_WITHIN_S = 5.0


class Strangers:
    """The messages that one server reads from unauthenticated callers."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def read(self, requests: AsyncIterator[Any]) -> Any:
        """Return the only message of a call. Raises DeadlineExceeded when it is late."""
        try:
            return await self._next(requests)
        except StopAsyncIteration:
            raise InvalidRequest("the call has no message: send one", param="request") from None

    async def read_each(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        while True:
            try:
                message = await self._next(requests)
            except StopAsyncIteration:
                return
            yield message

    async def _next(self, requests: AsyncIterator[Any]) -> Any:
        async with self._turns:
            try:
                async with asyncio.timeout(_WITHIN_S):
                    return await anext(requests)
            except TimeoutError as exc:
                raise DeadlineExceeded(
                    f"no message arrived within {_WITHIN_S:g} s: send it at once, or authenticate"
                ) from exc
