"""The loop that servers run on."""

import asyncio

from sax.host import loop_factory


def test_a_server_runs_on_uvloop_where_there_is_one():
    async def name() -> str:
        return type(asyncio.get_running_loop()).__module__

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        assert runner.run(name()).partition(".")[0] == "uvloop"
