"""Reads answers whole, for replies that are not streamed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from http_gateway.openai.reply import Transcript
from http_gateway.streams.sse import Feed, stop
from sax.errors import ReplicaLost
from sax.types import TokenChunk


async def read_all(
    feeds: Sequence[Feed[TokenChunk]],
    transcripts: Sequence[Transcript],
    on_first: Callable[[], None],
) -> None:
    """Read every choice to its end; the first failure cancels the others."""
    waiting = [on_first]
    tasks = [
        asyncio.create_task(_read(feed, transcript, waiting))
        for feed, transcript in zip(feeds, transcripts, strict=True)
    ]
    try:
        await asyncio.gather(*tasks)
    finally:
        await stop(*tasks)


async def _read(
    feed: Feed[TokenChunk], transcript: Transcript, waiting: list[Callable[[], None]]
) -> None:
    def add(chunk: TokenChunk) -> None:
        if waiting:
            waiting.pop()()
        transcript.add(chunk)

    await feed(add)
    if transcript.finish_reason is None:
        raise ended_early()


def ended_early() -> ReplicaLost:
    """Return the error of an answer whose last chunk has no finish reason."""
    return ReplicaLost("the replica ended the stream without a finish reason; retry")
