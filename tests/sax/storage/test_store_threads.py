"""Calls on threads: their results, their errors, and what becomes of those that hang."""

import asyncio
import subprocess
import sys
import threading

import pytest

from sax.storage.store_threads import StoreThreads, TooManyCalls


async def test_a_call_gives_back_what_it_returns_or_raises():
    threads = StoreThreads(1)
    assert await threads.run(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await threads.run(divmod, 7, 0)
    assert await threads.run(int, "11", base=2) == 3


async def test_a_call_that_its_caller_gave_up_counts_until_it_ends():
    threads, hung = StoreThreads(1), threading.Event()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(threads.run(hung.wait), 0.05)
    with pytest.raises(TooManyCalls, match="1 calls to it have not returned"):
        await threads.run(int)
    hung.set()
    while True:
        try:
            assert await threads.run(int) == 0
            break
        except TooManyCalls:
            await asyncio.sleep(0.01)


@pytest.mark.extended
def test_a_call_that_hangs_for_ever_does_not_keep_the_process_alive():
    code = (
        "import asyncio, threading\n"
        "from sax.storage.store_threads import StoreThreads\n"
        "async def main():\n"
        "    await asyncio.wait_for(StoreThreads(1).run(threading.Event().wait), 0.05)\n"
        "try:\n"
        "    asyncio.run(main())\n"
        "except TimeoutError:\n"
        "    print('gave up')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert (ended.stdout, ended.stderr) == ("gave up\n", "")
