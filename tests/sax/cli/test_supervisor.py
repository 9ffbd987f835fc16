"""The supervisor with real child processes: small modules that record what happens to them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sax.cli.cell_plan import Child
from sax.cli.restarts import RestartPolicy
from sax.cli.supervisor import Supervisor
from sax.errors import Unavailable

# Writes its pid on start and its name on SIGTERM.
STEADY = """
import signal, sys, pathlib, os
name, folder = sys.argv[1], pathlib.Path(sys.argv[2])
def end(*_):
    with (folder / "ended").open("a") as f:
        f.write(name + "\\n")
    raise SystemExit(0)
signal.signal(signal.SIGTERM, end)
with (folder / (name + ".pids")).open("a") as f:
    f.write(f"{os.getpid()}\\n")
while True:
    signal.pause()
"""
BROKEN = "import sys; print('no such device'); sys.exit(7)"
STUBBORN = """
import signal, sys, pathlib, os, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[2], sys.argv[1] + ".pids").write_text(f"{os.getpid()}\\n")
while True:
    time.sleep(60)
"""
QUICK = RestartPolicy(first_s=0.01, longest_s=0.02, early_deaths=2)


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, source in (("steady", STEADY), ("broken", BROKEN), ("stubborn", STUBBORN)):
        (tmp_path / f"child_{name}.py").write_text(source)
    root = str(Path(__file__).parents[3])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), root)))
    return tmp_path


def child(folder: Path, name: str, module: str = "child_steady") -> Child:
    return Child(name, module, (name, str(folder)), folder / "logs" / f"{name}.log")


def pids(folder: Path, name: str) -> list[int]:
    file = folder / f"{name}.pids"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - what is awaited happens in another process
            await asyncio.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


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
    supervisor = Supervisor(children, said.append, policy=QUICK, drain_s=0.2)
    supervisor.start()
    await until(lambda: bool(pids(modules, "one")))
    await supervisor.drain()
    assert not alive(pids(modules, "one")[0])
    assert "killing it" in said[-1]


SUPERVISE = """
import asyncio, sys
from pathlib import Path
from sax.cli.cell_plan import Child
from sax.cli.supervisor import Supervisor
folder = Path(sys.argv[1])
async def main():
    one = Child("one", "child_steady", ("one", str(folder)), folder / "one.log")
    Supervisor((one,), print).start()
    await asyncio.Event().wait()
asyncio.run(main())
"""


def test_children_end_when_the_supervisor_is_killed(modules: Path) -> None:
    supervisor = subprocess.Popen([sys.executable, "-c", SUPERVISE, str(modules)])
    deadline = time.monotonic() + 30
    while not pids(modules, "one") and time.monotonic() < deadline:
        time.sleep(0.02)
    supervisor.kill()
    supervisor.wait()
    while not (modules / "ended").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert (modules / "ended").read_text() == "one\n"
