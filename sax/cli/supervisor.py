"""Keeps the processes of a cell alive: starts, restarts with a delay, drains in order.

Which process restarts and when is decided in `sax.cli.restarts`; what the processes are, in
`sax.cli.cell_plan`. Knows nothing of models.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sax.cli.cell_plan import Child
from sax.cli.restarts import GiveUp, Record, RestartPolicy, after_exit, describe_exit
from sax.errors import Unavailable

_LOG_LINES = 8


class Supervisor:
    """Owns the child processes. `say` gets one line of text per event."""

    def __init__(
        self,
        children: tuple[Child, ...],
        say: Callable[[str], None],
        *,
        policy: RestartPolicy | None = None,
        drain_s: float = 30.0,
    ) -> None:
        self._children = children
        self._say = say
        self._policy = policy or RestartPolicy()
        self._drain_s = drain_s
        self._records = {child.name: Record() for child in children}
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._draining = False
        # Every child's standard input is the read end; we are the only writer, so that our
        # death, of whatever cause, is seen by all of them (see sax.cli.leash).
        self._leash, self._leash_writer = os.pipe()

    def start(self) -> None:
        """Start every child and keep it alive until drain()."""
        self._keepers = [asyncio.create_task(self._keep(child)) for child in self._children]

    def answered(self, name: str) -> None:
        """Note that this child was seen to work: from now on it is always restarted."""
        self._records[name] = Record(self._records[name].failures, answered=True)

    def pid(self, name: str) -> int | None:
        """The process id of a child, None while it is down."""
        process = self._processes.get(name)
        return process.pid if process and process.returncode is None else None

    async def failed(self) -> None:
        """Wait for a child that cannot be kept alive. Raises Unavailable with its reason."""
        done, _ = await asyncio.wait(self._keepers, return_when=asyncio.FIRST_COMPLETED)
        for keeper in done:
            keeper.result()

    async def drain(self) -> None:
        """Stop the children, the last started first, each after the one before has ended."""
        self._draining = True
        for child in reversed(self._children):
            await self._stop(child)
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        os.close(self._leash)
        os.close(self._leash_writer)

    def kill(self) -> None:
        """End every child at once."""
        self._draining = True
        for process in self._processes.values():
            _signal_group(process, signal.SIGKILL)

    async def _keep(self, child: Child) -> None:
        loop = asyncio.get_running_loop()
        while not self._draining:
            began = loop.time()
            process = await self._spawn(child)
            if self._draining:
                _signal_group(process, signal.SIGTERM)
            code = await process.wait()
            if self._draining:
                return
            record = self._records[child.name]
            decision = after_exit(
                record, code=code, lived_s=loop.time() - began, policy=self._policy
            )
            if isinstance(decision, GiveUp):
                raise Unavailable(_last_words(child, code, decision.reason))
            self._records[child.name] = decision.record
            self._say(
                f"{child.name} died ({describe_exit(code)}); "
                f"restarting it in {decision.delay_s:g} s"
            )
            await asyncio.sleep(decision.delay_s)

    async def _spawn(self, child: Child) -> asyncio.subprocess.Process:
        child.log.parent.mkdir(parents=True, exist_ok=True)
        with child.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "sax.cli.leash",
                child.module,
                *child.flags,
                stdin=self._leash,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                # Its own group: Ctrl-C in the terminal reaches the supervisor only, which
                # drains in order.
                start_new_session=True,
            )
        self._processes[child.name] = process
        return process

    async def _stop(self, child: Child) -> None:
        process = self._processes.get(child.name)
        if process is None or process.returncode is not None:
            return
        self._say(f"draining the {child.name}")
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), self._drain_s)
        except TimeoutError:
            self._say(f"{child.name} did not end within {self._drain_s:g} s: killing it")
            _signal_group(process, signal.SIGKILL)
            await process.wait()


def _signal_group(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)  # start_new_session: the group has the child's id


def _last_words(child: Child, code: int, reason: str) -> str:
    tail = _tail(child.log)
    return (
        f"the {child.name} does not start: {reason} ({describe_exit(code)}). "
        f"The end of {child.log}:\n{tail}"
    )


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
    return "\n".join(f"    {line}" for line in lines)
