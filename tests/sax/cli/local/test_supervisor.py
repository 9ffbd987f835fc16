"""The supervisor with real child processes: small modules that record what happens to them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from sax.cli.local.child import Child
from sax.cli.local.supervisor import Gang, StopTimeouts, Supervisor
from sax.errors import Unavailable
from tests.sax.cli.children import QUICK, alive, child, hosts, pids, silence, until, write_modules


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


async def test_a_child_starts_after_the_one_that_it_follows_listens(modules: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port: int = other.getsockname()[1]
        late = replace(child(modules, "late"), after=port)
        supervisor = Supervisor((child(modules, "early"), late), lambda _: None, policy=QUICK)
        supervisor.start()
        await until(lambda: len(pids(modules, "early")) == 1)
        assert supervisor.pid("late") is None
        other.listen()
        await until(lambda: len(pids(modules, "late")) == 1)
    await supervisor.drain()


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


HOSTS = 3
# Hosts end by themselves, however late; only those of a primary that was killed are waited out.
PATIENCE = StopTimeouts(drain_s=60, gang_s=60, last_s=0.5)


@asynccontextmanager
async def supervised(
    children: tuple[Child, ...], say: Callable[[str], None], patience: StopTimeouts = PATIENCE
) -> AsyncIterator[Supervisor]:
    """Children under a supervisor; afterwards none of them is left."""
    supervisor = Supervisor(children, say, policy=QUICK, patience=patience)
    supervisor.start()
    try:
        yield supervisor
    finally:
        await supervisor.drain()
        assert [each.name for each in children if supervisor.pid(each.name) is not None] == []


def lives(folder: Path) -> list[int]:
    """How often each host was started."""
    return [len(pids(folder, f"host {each}")) for each in range(HOSTS)]


async def until_they_beat(folder: Path, generation: int) -> None:
    """Until every host of this generation, the first is 1, is there."""
    await until(lambda: lives(folder) == [generation] * HOSTS)
    now = [str(pids(folder, f"host {each}")[-1]) for each in range(HOSTS)]
    beats = [folder / f"beat {each}" for each in range(HOSTS)]
    await until(lambda: all(beat.exists() for beat in beats))
    await until(
        lambda: all(beat.read_text().startswith(pid) for beat, pid in zip(beats, now, strict=True))
    )


def every_pid(folder: Path) -> list[int]:
    return [pid for each in range(HOSTS) for pid in pids(folder, f"host {each}")]


@pytest.mark.extended
@pytest.mark.parametrize("victim", [0, 2])
async def test_a_killed_host_brings_its_gang_back_and_nothing_else(
    modules: Path, victim: int
) -> None:
    said: list[str] = []
    children = (child(modules, "one"), *hosts(modules, HOSTS), child(modules, "two"))
    async with supervised(children, said.append) as supervisor:
        await until_they_beat(modules, 1)
        supervisor.answered("gang")
        killed = pids(modules, f"host {victim}")[0]
        os.kill(killed, signal.SIGKILL)
        if victim != 0:
            await until(lambda: not alive(killed))
            silence(modules, victim)
        await until_they_beat(modules, 2)
        # It may beat before the supervisor is told that it has started it.
        again = pids(modules, f"host {victim}")[1]
        await until(lambda: supervisor.pid(f"gang host {victim}") == again)
        assert said == [
            f"gang: host {victim} died (killed by SIGKILL); restarting its 3 hosts in 0.01 s"
        ]
        first = [pids(modules, f"host {each}")[0] for each in range(HOSTS)]
        assert not any(map(alive, first))
        assert len(pids(modules, "one")) == len(pids(modules, "two")) == 1
    assert not any(map(alive, every_pid(modules)))
    if victim != 0:
        log = (modules / "logs" / "host-0.log").read_text()
        assert f"host {victim} is silent" in log, "the primary has the time to notice"


@pytest.mark.extended
@pytest.mark.parametrize("victim", [0, 1])
async def test_a_frozen_host_is_killed_once_the_others_have_left_it(
    modules: Path, victim: int
) -> None:
    said: list[str] = []
    patience = StopTimeouts(drain_s=60, gang_s=5, last_s=3)
    async with supervised(hosts(modules, HOSTS), said.append, patience) as supervisor:
        await until_they_beat(modules, 1)
        supervisor.answered("gang")
        frozen = pids(modules, f"host {victim}")[0]
        os.kill(frozen, signal.SIGSTOP)
        silence(modules, victim)
        await until_they_beat(modules, 2)
        assert not alive(frozen)
        assert len(said) == 1
        assert said[0].startswith(f"gang: host {victim} stopped answering")


async def test_a_host_that_is_refused_ends_the_cell_with_the_end_of_its_log(modules: Path) -> None:
    said: list[str] = []
    children = (child(modules, "one"), *hosts(modules, HOSTS, refused=1))
    patience = StopTimeouts(drain_s=20, gang_s=0.5, last_s=0.5)
    async with supervised(children, said.append, patience) as supervisor:
        text = r"the gang host 1 does not start: it rejected its flags(.|\n)*has other devices"
        with pytest.raises(Unavailable, match=text):
            await supervisor.failed()
        await until(lambda: bool(pids(modules, "one")))
    assert not any(map(alive, every_pid(modules)))
    assert lives(modules)[1] == 0


async def test_the_primary_drains_first_and_tells_the_others(modules: Path) -> None:
    said: list[str] = []
    children = (child(modules, "below"), *hosts(modules, HOSTS), child(modules, "above"))
    async with supervised(children, said.append):
        await until_they_beat(modules, 1)
        await until(lambda: bool(pids(modules, "below") and pids(modules, "above")))
    ended = (modules / "ended").read_text().splitlines()
    assert ended[:2] == ["above", "host 0"]
    assert sorted(ended[2:4]) == ["host 1", "host 2"]
    assert ended[4:] == ["below"]
    assert said == ["draining the above", "draining the gang", "draining the below"]


@pytest.mark.extended
async def test_a_frozen_secondary_does_not_hold_the_drain_up(modules: Path) -> None:
    said: list[str] = []
    # Time for the other one, which runs, to see that it should end.
    patience = StopTimeouts(drain_s=60, gang_s=3, last_s=0.5)
    async with supervised(hosts(modules, HOSTS), said.append, patience):
        await until_they_beat(modules, 1)
        os.kill(pids(modules, "host 2")[0], signal.SIGSTOP)
    assert said[1:] == ["gang host 2 did not stop within 3 s; killing it"]
    assert not any(map(alive, every_pid(modules)))


async def test_a_gang_that_drains_while_it_starts_leaves_no_process(modules: Path) -> None:
    reader, writer = os.pipe()
    try:
        gang = Gang(hosts(modules, HOSTS), reader, StopTimeouts(drain_s=5, gang_s=0.1, last_s=0.1))
        starting = asyncio.create_task(gang.start())
        await asyncio.sleep(0)
        await gang.drain(lambda _: None)
        await starting
        assert not gang.alive
        await gang.start()
        assert not gang.alive, "nothing is started once it drains"
        assert await gang.ended() == []
    finally:
        os.close(reader)
        os.close(writer)
