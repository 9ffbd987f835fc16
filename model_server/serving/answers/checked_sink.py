"""Checks a finished answer by what its grammar does not hold, before its last chunk is told.

Runs on the event loop; the check itself is a process's, within limits. An answer that breaks its
schema is the client's all the same: the last chunk says how.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Protocol

from msgspec.structs import replace

from model_server.grammars.compiler import AnswerVerdict
from sax.errors import SaxError
from sax.types import TokenChunk

logger = logging.getLogger(__name__)

# The last call carries an error or a chunk with a finish reason.
Sink = Callable[[TokenChunk | SaxError], None]
Check = Callable[[str], Awaitable[AnswerVerdict]]


class CheckedAnswer(Protocol):
    """Reads an answer as it comes, and checks it at its end."""

    def push(self, text: str) -> None: ...

    async def verdict(self) -> AnswerVerdict: ...


class CheckedJson:
    """An answer that is JSON, behind reasoning or not."""

    def __init__(self, check: Check, after: str = "") -> None:
        """after: the text behind which the JSON begins; "": it is the whole answer."""
        self._check = check
        self._after = after
        self._texts: list[str] = []

    def push(self, text: str) -> None:
        self._texts.append(text)

    async def verdict(self) -> AnswerVerdict:
        answer = "".join(self._texts)
        return await self._check(answer.partition(self._after)[2] if self._after else answer)


class CheckedSink:
    """Passes chunks on, and has the answer checked once it ends by itself."""

    def __init__(self, sink: Sink, answer: CheckedAnswer, counts: Counter[str]) -> None:
        """counts: gets the verdict."""
        self._sink = sink
        self._answer = answer
        self._counts = counts
        self._checking: asyncio.Task[None] | None = None  # kept alive here

    def __call__(self, chunk: TokenChunk | SaxError) -> None:
        if isinstance(chunk, TokenChunk):
            self._answer.push(chunk.text)
            if chunk.finish_reason == "stop":
                self._checking = asyncio.create_task(self._told(chunk))
                return
        self._sink(chunk)

    async def _told(self, last: TokenChunk) -> None:
        verdict = await self._answer.verdict()
        self._counts[verdict.kind] += 1
        if verdict.kind != "kept":
            logger.info("an answer and its schema: %s", verdict.why)
        self._sink(replace(last, schema_violation=verdict.why))
