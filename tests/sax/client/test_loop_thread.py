"""Coroutines for callers without a loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator

import pytest

from sax.client.loop_thread import LoopThread
from sax.errors import Cancelled, NotFound


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


async def count(to: int, closed: threading.Event) -> AsyncGenerator[int, None]:
    try:
        for number in range(to):
            yield number
        raise NotFound("no more")
    finally:
        closed.set()


def test_a_coroutine_runs_on_the_other_thread_and_its_result_comes_back() -> None:
    thread = LoopThread("sax-test")
    assert thread.run(double(21)) == 42
    thread.close()


def test_items_and_the_error_after_them_come_back() -> None:
    thread, closed, seen = LoopThread("sax-test"), threading.Event(), list[int]()
    items = thread.iterate(count(3, closed))
    seen += [next(items), next(items), next(items)]
    with pytest.raises(NotFound):
        next(items)
    assert seen == [0, 1, 2]
    assert closed.is_set()
    thread.close()


def test_an_iterator_left_early_closes_its_source() -> None:
    async def forever(closed: threading.Event) -> AsyncGenerator[int, None]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            closed.set()

    thread, closed = LoopThread("sax-test"), threading.Event()
    for item in thread.iterate(forever(closed)):
        assert item == 1
        break
    assert closed.wait(60)
    thread.close()


def test_closing_cancels_what_runs_and_ends_the_thread() -> None:
    thread = LoopThread("sax-test")
    started = threading.Event()

    async def wait() -> None:
        started.set()
        await asyncio.Event().wait()

    failures: list[BaseException] = []

    def caller() -> None:
        try:
            thread.run(wait())
        except Cancelled as error:
            failures.append(error)

    waiting = threading.Thread(target=caller)
    waiting.start()
    started.wait()
    thread.close()
    thread.close()
    waiting.join()
    assert len(failures) == 1
    assert "sax-test" not in [each.name for each in threading.enumerate()]
    with pytest.raises(Cancelled):
        thread.run(double(1))
