"""One kill after the other of a random host, and how long each took to be over."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sax.cli.local.cell_plan import CellPlan
from tests.tools.kills.asking import Clients

_BACK_S = 180.0
_LOOK_S = 0.02
_LOST = re.compile(r"host (\d+) \([^)\n]*\),? [^:\n]* is lost")
_DEATH = re.compile(r"host (\d+) died \(killed by SIGKILL\); restarting")


@dataclass(frozen=True)
class Kill:
    """One round, in seconds from the kill."""

    host: int
    streams: int  # in flight at that moment
    ended_s: float  # the last of them
    named_s: float  # a host that lives, or the supervisor, said who is lost
    back_s: float  # the first answer to a later request


class Broken(Exception):
    """A promise was not kept."""


class Killer:
    """Kills hosts of the first model server of a running cell."""

    def __init__(
        self, plan: CellPlan, clients: Clients, supervisor: Callable[[], str], seed: int
    ) -> None:
        """supervisor: all that it has said."""
        self._plan = plan
        self._clients = clients
        self._supervisor = supervisor
        self._luck = random.Random(seed)

    def kill_one(self) -> Kill:
        """Wait until it serves, kill, wait until it serves. Raises Broken."""
        self._wait_for_answer(time.monotonic())
        time.sleep(self._luck.uniform(0.2, 1.5))
        host = self._luck.randrange(self._plan.hosts)
        logs = {path: path.stat().st_size for path in self._plan.logs.glob("model_server*")}
        told = len(self._supervisor())
        in_flight = self._clients.in_flight()
        killed_s = time.monotonic()
        os.kill(host_pid(self._plan, host), signal.SIGKILL)
        named_s = _until(
            lambda: _named(host, logs, self._supervisor()[told:]),
            f"host {host} was never named lost",
        )
        ended_s = self._clients.ends_of(in_flight)
        if ended_s is None:
            raise Broken(f"host {host} was killed, and a request hangs")
        back_s = self._wait_for_answer(killed_s)
        return Kill(
            host=host,
            streams=len(in_flight),
            ended_s=ended_s - killed_s,
            named_s=named_s - killed_s,
            back_s=back_s - killed_s,
        )

    def _wait_for_answer(self, moment_s: float) -> float:
        answer = self._clients.answer_after(moment_s, _BACK_S)
        if answer is None:
            raise Broken(f"the replica was not back within {_BACK_S:g} s")
        return answer.ended_s


def host_pid(plan: CellPlan, host: int) -> int:
    """The process of this host. Raises Broken when there is none."""
    group, ordinal = f"--group_port={plan.group_port}", f"--host_ordinal={host}"
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (folder / "cmdline").read_text().split("\0")
        except OSError:  # it has just ended
            continue
        if group in arguments and ordinal in arguments:
            return int(folder.name)
    raise Broken(f"host {host} does not run")


def named_lost(text: str) -> set[int]:
    """The hosts that a log calls lost."""
    return {int(host) for host in _LOST.findall(text)}


def deaths(output: str) -> list[int]:
    """The hosts that the supervisor says were killed, in order."""
    return [int(host) for host in _DEATH.findall(output)]


def _named(host: int, logs: dict[Path, int], supervisor: str) -> bool:
    """Somebody has said since then that this host, and no other one, is lost."""
    lost = set(deaths(supervisor))
    for path, length in logs.items():
        with path.open("rb") as log:
            log.seek(length)
            lost |= named_lost(log.read().decode(errors="replace"))
    if lost - {host}:
        raise Broken(f"host {host} was killed, and hosts {sorted(lost)} were named lost")
    return bool(lost)


def _until(holds: Callable[[], bool], complaint: str) -> float:
    deadline_s = time.monotonic() + _BACK_S
    while not holds():
        if time.monotonic() > deadline_s:
            raise Broken(complaint)
        time.sleep(_LOOK_S)
    return time.monotonic()
