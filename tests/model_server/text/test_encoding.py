"""Encoding threads: short texts at once, long ones never in the way of medium ones."""

import asyncio
import threading

import pytest

from model_server.text.encoding import INLINE, EncodingThreads
from sax.errors import QueueFull
from tests.model_server.fake_server import until

LONG, MEDIUM = 1_000_000, 10_000


async def test_a_short_text_is_encoded_where_it_is_asked_for() -> None:
    threads = EncodingThreads()
    assert await threads.run(INLINE, threading.get_ident) == threading.get_ident()
    assert await threads.run(INLINE + 1, threading.get_ident) != threading.get_ident()
    threads.close()


async def test_medium_texts_pass_long_ones() -> None:
    threads, go = EncodingThreads(), threading.Event()
    long = [asyncio.create_task(threads.run(LONG, go.wait)) for _ in range(5)]
    await asyncio.sleep(0)
    assert await threads.run(MEDIUM, lambda: 7) == 7
    go.set()
    assert all(await asyncio.gather(*long))
    threads.close()


async def test_an_abandoned_text_that_has_not_begun_is_never_encoded() -> None:
    threads, go = EncodingThreads(), threading.Event()
    first = asyncio.create_task(threads.run(LONG, go.wait))
    begun: list[int] = []
    second = asyncio.create_task(threads.run(LONG, lambda: begun.append(1)))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    third = asyncio.create_task(threads.run(LONG, lambda: 3))
    go.set()
    assert (await first, await third, begun) == (True, 3, [])
    threads.close()


async def test_what_waits_is_bounded_and_room_comes_back() -> None:
    threads, go = EncodingThreads(), threading.Event()
    held = [asyncio.create_task(threads.run(16 << 20, go.wait)) for _ in range(4)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull):
        await threads.run(LONG, go.wait)
    assert await threads.run(INLINE, lambda: 1) == 1
    held[3].cancel()
    await until(held[3].done)
    last = asyncio.create_task(threads.run(LONG, go.wait))
    go.set()
    assert await last
    await asyncio.gather(*held[:3])
    threads.close()
