"""Load a model on all hosts of a replica: each builds its share and votes on the result.

The model is loaded once all hosts have loaded it. If one cannot, the error names it and every host
frees its share.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence

import sax.errors
from model_server.disaggregation.handed_pages import PageCount
from model_server.disaggregation.kv_transfers import KvTransfers
from model_server.engine.compiling import Programs
from model_server.engine.limits import EngineLimits
from model_server.engine.running.ops import Connect, DropPages, FetchPages, Runner
from model_server.multihost.commands import Do, Drop, LoadCommand, ProgramCommand, Vote
from model_server.multihost.lockstep import Lockstep
from model_server.multihost.primary import Primary
from model_server.multihost.programs import KeptPrograms, SharedPrograms
from sax.errors import LoadFailed, ReplicaLost, SaxError
from sax.need import from_text
from sax.types import ModelSpec, Progress

_GRACE_S = 5.0  # beyond the deadline of a fetch, for its reply to arrive


class GangTransfers:
    """`KvTransfers` across all hosts, as the primary sees them. Any thread may call it.

    Each host moves the shards of its own devices. Pages are exported and imported between steps, by
    the runner; fetching and dropping are not bound to steps.
    """

    def __init__(
        self, own: KvTransfers, hosts: Primary, servable: int, offers: Sequence[str]
    ) -> None:
        """offers: address of each host's pages, in host order."""
        self.gives, self.takes = own.gives, own.takes
        self._own = own
        self._hosts = hosts
        self._servable = servable
        self._offers = offers
        self._counts: dict[int, PageCount] = {}  # reserved, by key

    def addresses(self) -> Sequence[str]:
        return self._offers

    def reserve(self, key: int, count: PageCount) -> bool:
        # The other hosts have the same memory free; they reserve when the fetch command arrives.
        if not self._own.reserve(key, count):
            return False
        self._counts[key] = count
        return True

    def fetch(self, key: int, addresses: Sequence[str], deadline_s: float) -> None:
        """Fetch on every host. Raises the local error, or ReplicaLost with a host's reason."""
        count = self._counts.pop(key, PageCount(0))
        op = FetchPages(key, count.pages, count.window_pages, tuple(addresses), deadline_s)
        number = self._hosts.ask(self._servable, op)
        failure: SaxError | None = None
        try:
            self._own.fetch(key, addresses, deadline_s)
        except SaxError as error:
            failure = error
        for reply in self._hosts.replies(number, deadline_s + _GRACE_S):
            if reply.reason and failure is None:
                failure = ReplicaLost(f"{self._hosts.name(reply.ordinal)}: {reply.reason}")
        if failure is not None:
            self.drop(key)
            raise failure

    def drop(self, key: int) -> None:
        self._counts.pop(key, None)
        self._own.drop(key)
        if self._hosts.lost is None:
            self._hosts.publish(Do(self._servable, DropPages(key)))


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
