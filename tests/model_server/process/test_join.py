"""The heartbeat, against a real gRPC admin that only counts, and the admin server of --admin_port,
which lives as long as its parent.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from admin_server.__main__ import parse
from model_server.config import ModelServerConfig
from model_server.process.join import AdminProcess, Joiner, admin_command
from sax.auth.security import Security
from sax.errors import AdminUnavailable
from sax.proto import admin_pb2, admin_pb2_grpc
from sax.types import ServerInfo
from sax.wire.rpc import server_options
from sax.wire.servers import decode_join
from tests.model_server.waiting import until

INFO = ServerInfo(
    address="127.0.0.1:1",
    chip_type="cpu",
    chip_topology="1",
    model_paths=("fake",),
    tags=("blue",),
    incarnation="abc",
    memory_total=5,
)


class CountingAdmin(admin_pb2_grpc.AdminServicer):
    """Remembers who joined."""

    def __init__(self) -> None:
        self.joins: list[ServerInfo] = []
        self.left: list[ServerInfo] = []
        self.answers = asyncio.Event()
        self.answers.set()

    async def Join(self, request: Any, context: Any) -> admin_pb2.JoinResponse:
        if request.leaving:
            self.left.append(decode_join(request))
            return admin_pb2.JoinResponse()
        self.joins.append(decode_join(request))
        await self.answers.wait()
        return admin_pb2.JoinResponse()


@asynccontextmanager
async def admin_on(port: int) -> AsyncIterator[tuple[CountingAdmin, int]]:
    admin = CountingAdmin()
    server = grpc.aio.server(options=server_options())
    admin_pb2_grpc.add_AdminServicer_to_server(admin, server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield admin, port
    finally:
        await server.stop(0)


@asynccontextmanager
async def joining(
    admin: Callable[[], str], info: Callable[[], ServerInfo] = lambda: INFO
) -> AsyncIterator[None]:
    async def where() -> str:
        return admin()

    task = asyncio.create_task(Joiner(where, info, period_s=0.05).run())
    try:
        yield
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_server_joins_at_start_and_again_and_again() -> None:
    async with admin_on(0) as (admin, port), joining(lambda: f"127.0.0.1:{port}"):
        await until(lambda: len(admin.joins) >= 3)
        assert set(admin.joins) == {INFO}


async def test_what_a_server_says_is_asked_anew_for_every_join() -> None:
    tags = iter(range(1000))

    def info() -> ServerInfo:
        return ServerInfo(address="a:1", tags=(str(next(tags)),))

    async with admin_on(0) as (admin, port), joining(lambda: f"127.0.0.1:{port}", info):
        await until(lambda: len(admin.joins) >= 2)
        assert [join.tags for join in admin.joins[:2]] == [("0",), ("1",)]


async def test_an_admin_that_comes_back_is_joined_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "model_server.process.join")
    async with admin_on(0) as (first, port), joining(lambda: f"127.0.0.1:{port}"):
        await until(lambda: bool(first.joins))
    async with joining(lambda: f"127.0.0.1:{port}"):
        await until(lambda: "not joined" in caplog.text)
        async with admin_on(port) as (second, _):
            await until(lambda: bool(second.joins))
    assert caplog.text.count("not joined") == 1


async def test_an_admin_that_moves_is_found() -> None:
    address = "127.0.0.1:9"
    async with admin_on(0) as (admin, port), joining(lambda: address):
        address = f"127.0.0.1:{port}"
        await until(lambda: bool(admin.joins))


async def test_not_knowing_where_the_admin_is_does_not_end_the_heartbeat() -> None:
    asked = 0

    def nowhere() -> str:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise AdminUnavailable("no admin server has written its address")
        if asked < 5:
            raise PermissionError("location.proto")
        return f"127.0.0.1:{port}"

    async with admin_on(0) as (admin, port), joining(nowhere):
        await until(lambda: bool(admin.joins))


async def test_a_server_that_joined_says_when_it_leaves() -> None:
    async with admin_on(0) as (admin, port):

        async def where() -> str:
            return f"127.0.0.1:{port}"

        joiner = Joiner(where, lambda: INFO)
        await joiner.leave()
        assert admin.left == []  # it had not joined
        task = asyncio.create_task(joiner.run())
        await until(lambda: bool(admin.joins))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await joiner.leave()
        assert admin.left == [INFO]
    await joiner.leave()  # the admin is gone: no error


async def test_a_server_whose_join_was_not_answered_says_when_it_leaves_too() -> None:
    async with admin_on(0) as (admin, port):

        async def where() -> str:
            return f"127.0.0.1:{port}"

        admin.answers.clear()
        joiner = Joiner(where, lambda: INFO)
        task = asyncio.create_task(joiner.run())
        await until(lambda: bool(admin.joins))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await joiner.leave()
        assert admin.left == [INFO]


# A child that tells each of its lives, and ends when its standard input does.
_CHILD = "import os, sys; open(sys.argv[1], 'a').write(f'{os.getpid()}\\n'); sys.stdin.read()"


def test_the_admin_server_serves_the_cell_beside_the_model_server() -> None:
    _, _, module, *flags = admin_command(
        ModelServerConfig(sax_cell="/sax/prod", host="0.0.0.0", admin_port=10000)
    )
    config = parse(flags)
    assert module == "admin_server"
    assert (str(config.cell), config.host) == ("/sax/prod", "0.0.0.0")
    assert (config.port, config.status_port) == (10000, 10002)


def test_the_admin_server_asks_its_callers_who_they_are_as_the_model_server_does() -> None:
    security = Security(tokens="/tokens", admin_acl="ops")
    config = ModelServerConfig(admin_port=65535, advertise="h", security=security)
    made = parse(admin_command(config)[3:])
    assert made.security == security
    assert (made.advertise, made.status_port) == ("h", -1)


async def lives(told: Path, count: int) -> list[int]:
    """The process ids of its lives, once there were so many."""
    return await asyncio.to_thread(_lives, told, count)


def _lives(told: Path, count: int) -> list[int]:
    while not told.exists() or len(told.read_text().splitlines()) < count:
        time.sleep(0.02)
    return [int(line) for line in told.read_text().splitlines()]


async def test_it_is_started_again_when_it_dies_and_ends_with_its_parent(tmp_path: Path) -> None:
    told = tmp_path / "lives"
    process = AdminProcess(["-c", _CHILD, str(told)], first_pause_s=0.01)
    process.start()
    (first,) = await lives(told, 1)
    os.kill(first, signal.SIGKILL)
    _, second = await lives(told, 2)
    await process.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(second, 0)
    assert len(await lives(told, 2)) == 2


async def test_it_ends_even_if_its_parent_is_killed(tmp_path: Path) -> None:
    told = tmp_path / "lives"
    program = (
        "import asyncio\n"
        "from model_server.process.join import AdminProcess\n"
        "async def main():\n"
        f"    AdminProcess(['-c', {_CHILD!r}, {str(told)!r}]).start()\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    root = Path(__file__).parents[3]
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", program, cwd=root)
    (child,) = await lives(told, 1)
    parent.kill()
    await parent.wait()
    await asyncio.to_thread(_wait_for_end, child)


def _wait_for_end(pid: int) -> None:
    while _state(pid) not in ("", "Z"):
        time.sleep(0.02)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""
