"""Small programs for the supervisor to run, which record what happens to them in a folder."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sax.cli.local.child import Child
from sax.cli.local.supervisor import RestartPolicy

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
# One host of a gang, like those of a model server: it leaves with status 75 when another host is
# silent, and as the primary it tells the others to end on SIGTERM. The test says who is silent, and
# in which life: on a busy machine no time-out would tell.
HOST = """
import os, pathlib, signal, sys, time
ordinal, count, folder, *refuse = sys.argv[1:]
ordinal, count, folder = int(ordinal), int(count), pathlib.Path(folder)
def write(name, text):
    with (folder / name).open("a") as f:
        f.write(text + "\\n")
if refuse:
    print(f"host {ordinal} has other devices")
    sys.exit(2)
def end(*_):
    if ordinal == 0:
        write("ended", "host 0")
        (folder / "end").touch()
        raise SystemExit(0)
signal.signal(signal.SIGTERM, end)
write(f"host {ordinal}.pids", str(os.getpid()))
life = len((folder / f"host {ordinal}.pids").read_text().split())
while True:
    (folder / f"new {ordinal}").write_text(f"{os.getpid()} {time.monotonic()}")
    (folder / f"new {ordinal}").rename(folder / f"beat {ordinal}")  # never seen half written
    if ordinal and (folder / "end").exists():
        write("ended", f"host {ordinal}")
        sys.exit(0)
    for peer in set(range(count)) - {ordinal}:
        if (folder / f"silent {peer} {life}").exists():
            print(f"host {peer} is silent")
            sys.exit(75)
    time.sleep(0.05)
"""
QUICK = RestartPolicy(first_s=0.01, longest_s=0.02, early_deaths=2)


def write_modules(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the programs where a child process finds them."""
    sources = {"steady": STEADY, "broken": BROKEN, "stubborn": STUBBORN, "host": HOST}
    for name, source in sources.items():
        (folder / f"child_{name}.py").write_text(source)
    root = str(Path(__file__).parents[3])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(folder), root)))
    return folder


def child(folder: Path, name: str, module: str = "child_steady") -> Child:
    return Child(name, module, (name, str(folder)), folder / "logs" / f"{name}.log")


def hosts(folder: Path, count: int, *, refused: int | None = None) -> tuple[Child, ...]:
    """A gang called "gang"; one of its hosts may be refused, as a model server's would be."""
    return tuple(
        Child(
            f"gang host {each}",
            "child_host",
            (str(each), str(count), str(folder), *(("refuse",) if each == refused else ())),
            folder / "logs" / f"host-{each}.log",
            gang="gang",
        )
        for each in range(count)
    )


def silence(folder: Path, host: int) -> None:
    """Tell the other hosts, in their first life, that they hear nothing of this one."""
    (folder / f"silent {host} 1").touch()


def pids(folder: Path, name: str) -> list[int]:
    file = folder / f"{name}.pids"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what is awaited happens in another process
            await asyncio.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
