"""The supervisor with real child processes: small modules that record what happens to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sax.cli.local.gang import StopTimeouts
from sax.cli.local.supervisor import Supervisor
from sax.errors import Unavailable
from tests.sax.cli.children import QUICK, alive, child, pids, until, write_modules


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return write_modules(tmp_path, monkeypatch)


async def test_a_killed_child_is_restarted_and_said_so(modules: Path) -> None:
    said: list[str] = []
    supervisor = Supervisor((child(modules, "one"),), said.append, policy=QUICK)
    supervisor.start()
    await until(lambda: len(pids(modules, "one")) == 1)
    supervisor.answered("one")
    os.kill(pids(modules, "one")[0], signal.SIGKILL)
    await until(lambda: len(pids(modules, "one")) == 2)
    assert supervisor.pid("one") == pids(modules, "one")[1]
    await supervisor.drain()
    assert said[0].startswith("one died (killed by SIGKILL); restarting it in ")
    assert supervisor.pid("one") is None


async def test_children_drain_in_the_reverse_of_the_starting_order(modules: Path) -> None:
    names = ("first", "second", "third")
    children = tuple(child(modules, name) for name in names)
    supervisor = Supervisor(children, lambda _: None, policy=QUICK)
    supervisor.start()
    await until(lambda: all(pids(modules, name) for name in names))
    await supervisor.drain()
    assert (modules / "ended").read_text().split() == ["third", "second", "first"]


async def test_a_child_that_never_answers_ends_the_cell_with_the_end_of_its_log(
    modules: Path,
) -> None:
    said: list[str] = []
    children = (child(modules, "one"), child(modules, "bad", "child_broken"))
    supervisor = Supervisor(children, said.append, policy=QUICK)
    supervisor.start()
    with pytest.raises(Unavailable, match=r"bad does not start(.|\n)*no such device"):
        await supervisor.failed()
    await until(lambda: bool(pids(modules, "one")))
    await supervisor.drain()
    assert not alive(pids(modules, "one")[0])


async def test_a_child_that_ignores_the_drain_is_killed(modules: Path) -> None:
    said: list[str] = []
    children = (child(modules, "one", "child_stubborn"),)
    supervisor = Supervisor(children, said.append, policy=QUICK, patience=StopTimeouts(drain_s=0.2))
    supervisor.start()
    await until(lambda: bool(pids(modules, "one")))
    await supervisor.drain()
    assert not alive(pids(modules, "one")[0])
    assert "killing it" in said[-1]


SUPERVISE = """
import asyncio, sys
from pathlib import Path
from sax.cli.local.child import Child
from sax.cli.local.supervisor import Supervisor
folder = Path(sys.argv[1])
async def main():
    one = Child("one", "child_steady", ("one", str(folder)), folder / "one.log")
    Supervisor((one,), print).start()
    await asyncio.Event().wait()
asyncio.run(main())
"""


def test_children_end_when_the_supervisor_is_killed(modules: Path) -> None:
    supervisor = subprocess.Popen([sys.executable, "-c", SUPERVISE, str(modules)])
    deadline = time.monotonic() + 60
    while not pids(modules, "one") and time.monotonic() < deadline:
        time.sleep(0.02)
    supervisor.kill()
    supervisor.wait()
    ended = modules / "ended"
    while not (ended.exists() and ended.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert ended.read_text() == "one\n"
