"""Supervisor of a local cell: starts its processes, restarts them with a delay, drains in order.

The hosts of a gang restart together. `sax.cli.local.supervisor` decides what restarts and when,
`local.gang` starts and ends the processes of one gang, `local.cell_plan` lists them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from sax.cli.local.child import Child
from sax.errors import Unavailable

# Restart decisions for the supervisor: pure, without processes or clock.
#
# A child that has answered once is restarted forever, after a delay that doubles. A child that
# never answered is given up after a few tries: its flags, its port or its installation are wrong,
# and restarting it would only hide that.
#
# The children of a gang share one record, and the exit of one of them is the cause.

GANG_LOST_EXIT = 75  # another host of the gang is lost: not this process's fault
_HUNG_EXIT = 70  # a step of its own device did not finish
_USAGE_EXIT = 2  # argparse's exit code for a flag it does not know


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Delays between restarts, and when to give up."""

    first_s: float = 0.5  # delay before the first restart
    longest_s: float = 30.0  # upper bound of the delay
    steady_s: float = 60.0  # running this long resets the failure count
    early_deaths: int = 3  # give up after this many deaths without an answer

    def __post_init__(self) -> None:
        if not 0 < self.first_s <= self.longest_s:
            raise ValueError("first_s must be above 0 and at most longest_s")
        if self.early_deaths < 1:
            raise ValueError("early_deaths must be at least 1")


@dataclass(frozen=True, slots=True)
class Record:
    """The supervisor's memory of one child."""

    failures: int = 0  # consecutive deaths, each after less than steady_s
    answered: bool = False  # has worked at least once


@dataclass(frozen=True, slots=True)
class Restart:
    record: Record
    delay_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """A restart cannot help."""

    reason: str


@dataclass(frozen=True, slots=True)
class Exit:
    """The exit of one process of a gang; a lone child is a gang of one."""

    host: int
    code: int  # negative for a signal, as in subprocess
    killed: bool = False  # by the supervisor, because it outlived the others


def cause(exits: Sequence[Exit]) -> Exit:
    """Return the exit that ended the gang; `exits` are in the order seen.

    That is the first with a reason of its own; else one that had to be killed, since the others
    left because it went silent; else the first.
    """
    own = (exit for exit in exits if not exit.killed and exit.code != GANG_LOST_EXIT)
    silent = (exit for exit in exits if exit.killed)
    return next(own, None) or next(silent, None) or exits[0]


def after_exit(
    record: Record, *, code: int, lived_s: float, policy: RestartPolicy
) -> Restart | GiveUp:
    """Decide what follows a child's exit; `code` is negative for a signal, as in subprocess."""
    failures = 1 if lived_s >= policy.steady_s else record.failures + 1
    if not record.answered and code == _USAGE_EXIT:
        return GiveUp("it rejected its flags")
    if not record.answered and failures >= policy.early_deaths:
        return GiveUp(f"it died {failures} times without answering once")
    return Restart(Record(failures, record.answered), delay(failures, policy))


def delay(failures: int, policy: RestartPolicy) -> float:
    """Return the seconds before restart number `failures`: doubling, up to longest_s."""
    doublings = min(failures - 1, 32)  # 2**32 exceeds any sensible bound
    return min(policy.first_s * 2**doublings, policy.longest_s)


def describe_death(exit: Exit) -> str:
    if exit.killed:
        return "stopped answering (the others left it, so it was killed)"
    if exit.code == GANG_LOST_EXIT:
        return f"lost another host ({describe_exit(exit.code)})"
    if exit.code == _HUNG_EXIT:
        return f"hung in a step ({describe_exit(exit.code)}; its log has the stacks)"
    return f"died ({describe_exit(exit.code)})"


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


# The processes of one gang: started together, and all ended when one of them ends.
#
# A lone child is a gang of one. Wraps `asyncio.subprocess`; the supervisor decides
# with `RestartPolicy` when to start again.

_Waits = dict["asyncio.Task[int]", int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopTimeouts:
    """Grace periods before processes are killed."""

    drain_s: float = 30.0  # lets running streams finish
    # After one process has ended: the others must notice, which takes the timeout for a silent
    # host (--host_timeout_seconds, 3 s by default), and the primary must end its streams.
    gang_s: float = 6.0
    last_s: float = 2.0  # after the primary has ended: no streams are left


class Gang:
    """Owns the processes of a gang's children, primary first."""

    def __init__(self, children: tuple[Child, ...], leash: int, patience: StopTimeouts) -> None:
        self.children = children
        self.name = children[0].gang or children[0].name
        self._leash = leash
        self._patience = patience
        self._processes: list[asyncio.subprocess.Process] = []
        self._starting = asyncio.Lock()
        self._draining = False

    @property
    def alive(self) -> bool:
        return any(map(_runs, self._processes))

    def pid(self, child: Child) -> int | None:
        for known, process in zip(self.children, self._processes, strict=False):
            if known is child and _runs(process):
                return process.pid
        return None

    async def start(self) -> None:
        """Start every process; start no more once the gang drains."""
        async with self._starting:
            self._processes = []
            for child in self.children:
                if self._draining:
                    return
                self._processes.append(await _spawn(child, self._leash))

    async def ended(self) -> list[Exit]:
        """Wait for one process to end, give the others their grace period, kill the rest.

        Exits are in the order seen. Kills nothing while the gang drains.
        """
        waits: _Waits = {
            asyncio.create_task(process.wait()): host
            for host, process in enumerate(self._processes)
        }
        try:
            return await self._see_out(waits)
        finally:
            for task in waits:
                task.cancel()

    async def drain(self, say: Callable[[str], None]) -> None:
        """Send SIGTERM to the primary, which stops the others; kill those that do not end."""
        self._draining = True
        async with self._starting:  # wait for a start in progress
            pass
        if not self.alive:
            return
        say(f"draining the {self.name}")
        with suppress(ProcessLookupError):
            self._processes[0].terminate()
        await self._leave(self._processes[:1], self._patience.drain_s, say)
        await self._leave(self._processes[1:], self._patience.gang_s, say)

    def kill(self) -> None:
        self._draining = True
        for process in self._processes:
            _kill(process)

    async def _see_out(self, waits: _Waits) -> list[Exit]:
        clock = asyncio.get_running_loop().time
        exits: list[Exit] = []
        killed: set[int] = set()
        deadline: float | None = None
        pending = set(waits)
        while pending:
            left = None if deadline is None else max(0.0, deadline - clock())
            done, pending = await asyncio.wait(
                pending, timeout=left, return_when=asyncio.FIRST_COMPLETED
            )
            exits += [
                Exit(waits[task], task.result(), waits[task] in killed)
                for task in sorted(done, key=waits.__getitem__)
            ]
            deadline = self._deadline(exits, deadline, clock()) if done else None
            if not done and not self._draining:
                killed = {waits[task] for task in pending}
                for host in killed:
                    _kill(self._processes[host])
        return exits

    def _deadline(self, exits: list[Exit], earlier: float | None, now: float) -> float:
        primary_ended = any(exit.host == 0 for exit in exits)
        latest = now + (self._patience.last_s if primary_ended else self._patience.gang_s)
        return latest if earlier is None else min(earlier, latest)

    async def _leave(
        self,
        processes: list[asyncio.subprocess.Process],
        within_s: float,
        say: Callable[[str], None],
    ) -> None:
        waits = [asyncio.create_task(process.wait()) for process in processes]
        if not waits:
            return
        await asyncio.wait(waits, timeout=within_s)
        for process in filter(_runs, processes):
            name = self.children[self._processes.index(process)].name
            say(f"{name} did not stop within {within_s:g} s; killing it")
            _kill(process)
        await asyncio.gather(*waits)


async def _spawn(child: Child, leash: int) -> asyncio.subprocess.Process:
    child.log.parent.mkdir(parents=True, exist_ok=True)
    with child.log.open("ab") as log:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "sax.cli.local.leash",
            child.module,
            *child.flags,
            env={**os.environ, **dict(child.environ)},
            stdin=leash,
            stdout=log,
            stderr=asyncio.subprocess.STDOUT,
            # In its own process group, so that Ctrl-C reaches only the supervisor, which drains
            # in order.
            start_new_session=True,
        )


def _runs(process: asyncio.subprocess.Process) -> bool:
    return process.returncode is None


def _kill(process: asyncio.subprocess.Process) -> None:
    """Send SIGKILL, which works even on a stopped process."""
    if _runs(process):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # start_new_session makes its pid the group id


_LOG_LINES = 8
_BEHIND_S = 3.0  # that a child waits for another at most
_LOOK_S = 0.02


class Supervisor:
    """Owns the child processes. `say` gets one line of text per event."""

    def __init__(
        self,
        children: tuple[Child, ...],
        say: Callable[[str], None],
        *,
        policy: RestartPolicy | None = None,
        patience: StopTimeouts | None = None,
    ) -> None:
        self._say = say
        self._policy = policy or RestartPolicy()
        # Every child's standard input is the read end. This process is the only writer, so all
        # children notice however it dies (see sax.cli.local.leash).
        self._leash, self._leash_writer = os.pipe()
        self._gangs = [
            Gang(tuple(members), self._leash, patience or StopTimeouts())
            for _, members in groupby(children, key=lambda child: child.gang or child.name)
        ]
        self._records = {gang.name: Record() for gang in self._gangs}
        self._keepers: list[asyncio.Task[None]] = []
        self._draining = False

    def start(self) -> None:
        """Start every child and keep it running until drain()."""
        self._keepers = [asyncio.create_task(self._keep(gang)) for gang in self._gangs]

    def answered(self, name: str) -> None:
        """Mark this child or gang as having worked: from now on it is always restarted."""
        self._records[name] = Record(self._records[name].failures, answered=True)

    def pid(self, name: str) -> int | None:
        for gang in self._gangs:
            for child in gang.children:
                if child.name == name:
                    return gang.pid(child)
        return None

    async def failed(self) -> None:
        """Wait until a child cannot be kept running, then raise Unavailable with the reason."""
        done, _ = await asyncio.wait(self._keepers, return_when=asyncio.FIRST_COMPLETED)
        for keeper in done:
            keeper.result()

    async def drain(self) -> None:
        """Stop the children one after another, last started first."""
        self._draining = True
        for gang in reversed(self._gangs):
            await gang.drain(self._say)
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        os.close(self._leash)
        os.close(self._leash_writer)

    def kill(self) -> None:
        self._draining = True
        for gang in self._gangs:
            gang.kill()

    async def _keep(self, gang: Gang) -> None:
        loop = asyncio.get_running_loop()
        await _until_listens(gang.children[0].after)
        while not self._draining:
            began = loop.time()
            await gang.start()
            exits = await gang.ended()
            if self._draining:
                return
            reason = cause(exits)
            decision = after_exit(
                self._records[gang.name],
                code=reason.code,
                lived_s=loop.time() - began,
                policy=self._policy,
            )
            if isinstance(decision, GiveUp):
                raise Unavailable(_last_words(gang, reason, decision.reason))
            self._records[gang.name] = decision.record
            self._say(_obituary(gang, reason, decision.delay_s))
            await asyncio.sleep(decision.delay_s)


async def _until_listens(port: int) -> None:
    """Wait for another child, if a port is given; not for ever, since it may be slow or dead."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_BEHIND_S):
            while port and not await listens(port):  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_S)


async def listens(port: int) -> bool:
    """Return True if a process of this machine accepts connections at a port."""
    with suppress(OSError):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        return True
    return False


def _obituary(gang: Gang, reason: Exit, delay_s: float) -> str:
    death, hosts = describe_death(reason), len(gang.children)
    if not gang.children[0].gang:
        return f"{gang.name} {death}; restarting it in {delay_s:g} s"
    return f"{gang.name}: host {reason.host} {death}; restarting its {hosts} hosts in {delay_s:g} s"


def _last_words(gang: Gang, reason: Exit, why: str) -> str:
    child = gang.children[reason.host]
    return (
        f"the {child.name} does not start: {why} ({describe_exit(reason.code)}). "
        f"Last lines of {child.log}:\n{_tail(child.log)}"
    )


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
    return "\n".join(f"    {line}" for line in lines)
