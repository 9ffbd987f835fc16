"""The admin server of --admin_port: its command line, and that it lives as long as its parent."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from admin_server.__main__ import parse
from model_server.config import ModelServerConfig
from model_server.process.join import AdminProcess, admin_command
from sax.auth.security import Security

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
