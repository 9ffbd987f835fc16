"""Supervisor of a local cell: starts its processes, restarts them with a delay, drains in order.

The hosts of a gang restart together. `sax.cli.local.restarts` decides what restarts and when,
`local.gang` starts and ends the processes of one gang, `local.cell_plan` lists them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

from sax.cli.local.child import Child
from sax.cli.local.gang import Gang, StopTimeouts
from sax.cli.local.restarts import (
    Exit,
    GiveUp,
    Record,
    RestartPolicy,
    after_exit,
    cause,
    describe_death,
    describe_exit,
)
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
