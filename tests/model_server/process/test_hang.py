"""A step that hangs ends the process: requests fail, stacks are logged, its status tells of it."""

import asyncio
import re
import sys
from pathlib import Path

from model_server.config import HUNG
from sax.errors import ReplicaLost
from sax.wire import rpc
from tests.model_server.fake_server import Served, Stream
from tests.model_server.hanging_model import STEPS

ROOT = Path(__file__).parents[3]


async def test_a_hang_fails_every_request_dumps_stacks_and_ends_the_process() -> None:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.model_server.hanging_model"),
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
    )
    assert child.stderr is not None
    try:
        log = ""
        while not (found := re.search(r"model server listening on (127\.0\.0\.1:\d+)", log)):
            assert (line := await child.stderr.readline()), log
            log += line.decode()
        channel = rpc.open_channel(found[1])
        served = Served(None, channel)  # pyright: ignore
        await served.load()
        stream = Stream(served)
        for number in (1, 2):
            await stream.ask(number, max_tokens=60)
        for number in (1, 2):
            await stream.until_over(number)
        log += (await child.stderr.read()).decode()
        assert await child.wait() == HUNG
        await channel.close()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    for number in (1, 2):
        assert isinstance(failure := stream.failures[number], ReplicaLost)
        assert f"step {STEPS + 1} (" in failure.text
    assert f"CRITICAL:model_server.engine.watchdog:step {STEPS + 1} (" in log
    assert re.search(r"Thread 0x\w+.*\n(.*\n)*.*engine\.py.* in _loop", log)
