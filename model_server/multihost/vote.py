"""Load a model on all hosts of a replica: each builds its share and votes on the result.

The model is loaded once all hosts have loaded it. If one cannot, the error names it and every host
frees its share.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import sax.errors
from model_server.disaggregation.kv_transfers import KvTransfers
from model_server.engine.compiling import Programs
from model_server.engine.limits import EngineLimits
from model_server.engine.running.ops import Connect, Runner
from model_server.multihost.commands import Drop, LoadCommand, ProgramCommand, Vote
from model_server.multihost.gang_transfers import GangTransfers
from model_server.multihost.lockstep import Lockstep
from model_server.multihost.primary import Primary
from model_server.multihost.programs import KeptPrograms, SharedPrograms
from sax.errors import LoadFailed, SaxError
from sax.need import from_text
from sax.types import ModelSpec, Progress

Report = Callable[[Progress], None]
Build = Callable[[Programs], Runner]  # this host's share


class Shares:
    def __init__(self, hosts: Primary, kept: KeptPrograms, *, alike: bool) -> None:
        """alike: all hosts have the same instruction set, so programs can be sent."""
        self._hosts = hosts
        self._kept = kept
        self._alike = alike
        self._numbers = itertools.count(1)
        self._counting = threading.Lock()

    def load(self, spec: ModelSpec, limits: EngineLimits, build: Build, report: Report) -> Lockstep:
        """Build on every host, collect the votes, run every bucket once.

        build: makes this host's share. Raises LoadFailed or any SaxError that a host voted.
        """
        with self._counting:
            servable = next(self._numbers)

        def send(name: str, body: bytes | None) -> None:
            self._hosts.publish(ProgramCommand(servable, name, body if self._alike else None))

        self._hosts.publish(LoadCommand(servable, spec, limits))
        runner: Runner | None = None
        try:
            runner = build(SharedPrograms(self._kept, send))
            others = self._count_votes(servable, report)
            offers = [getattr(runner, "offer", ""), *others]
            lockstep = Lockstep(runner, servable, self._hosts, offers)
            if Connect in runner.ops:
                lockstep.do(Connect(tuple(offers))).result()
            for index in range(runner.warmups):
                report(Progress("running bucket", index, runner.warmups))
                lockstep.warm(index)
            return lockstep
        except BaseException:
            if self._hosts.lost is None:
                self._hosts.publish(Drop(servable))
            if runner is not None:
                runner.close()
            raise

    def transfers(self, runner: Lockstep, own: KvTransfers) -> GangTransfers:
        return GangTransfers(own, self._hosts, runner.servable, runner.offers)

    def _count_votes(self, servable: int, report: Report) -> list[str]:
        """Return the other hosts' offers, in host order."""

        def look() -> None:
            waiting = self._hosts.waiting_for(servable)
            report(Progress(f"waiting for {waiting}" if waiting else "all hosts are ready"))

        votes = self._hosts.votes(servable, look)
        for vote in votes:
            if vote.reason:
                raise self._refusal(vote)
        return [vote.offer for vote in sorted(votes, key=lambda vote: vote.ordinal)]

    def _refusal(self, vote: Vote) -> SaxError:
        """Rebuild the host's error, with the host's name before the reason."""
        kind = getattr(sax.errors, vote.error, LoadFailed)
        if not (isinstance(kind, type) and issubclass(kind, SaxError)):
            kind = LoadFailed
        text = f"{self._hosts.name(vote.ordinal)}: {vote.reason}"
        return kind(text, need=from_text(vote.need) if vote.need else None)
