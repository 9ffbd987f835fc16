"""An island as the front sees it: its hosts, its lives, and what is outstanding there.

Every request goes to all hosts of an island in one order, and their answers become one. An island
lives or is lost as a whole: what was outstanding is answered at once, and its next life begins with
the programs that clients still hold, under their old handles.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from model_server.pathways.islands.host import ArrayDelivery, Errand, IslandHost, Shipment, Shipped
from model_server.pathways.scheduling.handles import INTERNAL, Fault
from model_server.pathways.scheduling.holding import HandleHolding
from model_server.pathways.scheduling.merging import Reply, described, merged
from model_server.pathways.scheduling.routes import lost

logger = logging.getLogger(__name__)


class HeldPrograms:
    """Requests to compile, in their order, by session and the handle of their program."""

    def __init__(self) -> None:
        self._errands: dict[tuple[int, int], Errand] = {}

    def __len__(self) -> int:
        return len(self._errands)

    def note(self, handle: int, errand: Errand) -> None:
        self._errands[errand.session, handle] = errand

    def drop(self, session: int, handles: Iterable[int]) -> None:
        for handle in handles:
            self._errands.pop((session, handle), None)

    def forget(self, session: int) -> None:
        for key in [key for key in self._errands if key[0] == session]:
            del self._errands[key]

    def errands(self) -> list[tuple[int, Errand]]:
        """Return (handle, request); under the same first handles they make the same handles."""
        return [(handle, errand) for (_, handle), errand in self._errands.items()]


Done = Callable[[Reply | Fault], None]
Arrived = Callable[[], None]


class _Outstanding:
    """A request whose answers are not all here."""

    def __init__(self, hosts: int, done: Done) -> None:
        self._replies: list[Reply | None] = [None] * hosts
        self._missing = hosts
        self.done = done

    def answered(self, host: int, reply: Reply) -> bool:
        """Take one host's answer; True with the last one."""
        if self._replies[host] is None:
            self._replies[host] = reply
            self._missing -= 1
        return not self._missing

    def merged(self) -> Reply | Fault:
        reply = merged([reply for reply in self._replies if reply is not None])
        return reply if reply.response else Fault(INTERNAL, "no host of the island answered")


class _Underway:
    """An array on its way here."""

    def __init__(self, hosts: int, arrived: Arrived) -> None:
        self.missing = hosts
        self.arrived = arrived


class Island:
    """One island. Everything happens on the front's event loop."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.epoch = 0  # counts the lives
        self.programs = HeldPrograms()
        self.description: Any = None  # InitResponse of its last life
        self._hosts: Sequence[IslandHost] = ()
        self._outstanding: dict[int, _Outstanding] = {}
        self._holding: defaultdict[int, HandleHolding] = defaultdict(HandleHolding)
        self._expected: dict[int, _Underway] = {}  # by transfer
        self._calls = 0

    @property
    def up(self) -> bool:
        return bool(self._hosts)

    @property
    def outstanding(self) -> int:
        """Requests without an answer."""
        return len(self._outstanding)

    @property
    def addresses(self) -> list[str]:
        """Addresses of the hosts, for workers of other islands."""
        return [host.address for host in self._hosts]

    def begin(self, hosts: Sequence[IslandHost]) -> None:
        """Start a life with these hosts, in their order, and compile again what is still held."""
        self.epoch += 1
        self._hosts = hosts
        self.description = described([host.description for host in hosts])
        for handle, errand in self.programs.errands():
            self._holding[errand.session].block(handle, (handle,))

            def done(outcome: Reply | Fault, session: int = errand.session, key: int = handle):
                self._release(session, key)

            self._send(errand, done)

    def end(self, why: str) -> None:
        """Answer everything outstanding with the loss. Idempotent."""
        if not self._hosts:
            return
        logger.warning("island %d is lost: %s", self.number, why)
        hosts, self._hosts = self._hosts, ()
        outstanding, self._outstanding = self._outstanding, {}
        holding, self._holding = self._holding, defaultdict(HandleHolding)
        self._expected.clear()
        for host in hosts:
            host.close()
        for each in outstanding.values():
            each.done(lost(self.number))
        for each in holding.values():
            for _, refuse in each.drain():
                refuse(lost(self.number))

    def call(self, errand: Errand, done: Done) -> None:
        """Send a request to all hosts. `done` is called once, maybe before this returns."""
        holding = self._holding.get(errand.session)
        if not self._hosts:
            done(lost(self.number))
        elif holding is None:
            self._send(errand, done)
        else:
            keeps = frozenset(errand.keeps())
            changes = frozenset(errand.touches) - keeps
            if not holding.holds(changes, (lambda: self._send(errand, done), done), keeps):
                self._send(errand, done)

    def ship(self, shipment: Shipment, shipped: Shipped) -> None:
        """Send an array of this island to another, from each of its hosts, once it is here."""
        holding = self._holding.get(shipment.session)
        if holding is None or not holding.holds(
            (), (lambda: self._ship(shipment, shipped), shipped), (shipment.array,)
        ):
            self._ship(shipment, shipped)

    def expect(self, arrival: ArrayDelivery, arrived: Arrived) -> None:
        """Make an array of another island's; what names it is held until it is here.

        `arrived` is called once it is, or an error in its place; not if the island is lost.
        """
        self._holding[arrival.session].block(("transfer", arrival.transfer), (arrival.handle,))
        self._expected[arrival.transfer] = _Underway(len(self._hosts), arrived)
        for host in self._hosts:
            host.expect(arrival, lambda: self._arrived(arrival))

    def astray(self, transfer: int, fault: Fault) -> None:
        """Tell that an array does not come; its handle holds the fault."""
        if transfer in self._expected:
            for host in self._hosts:
                host.astray(transfer, fault)

    def forget(self, session: int) -> None:
        """Free everything of a session."""
        self.programs.forget(session)
        self._holding.pop(session, None)
        for host in self._hosts:
            host.forget(session)

    def _ship(self, shipment: Shipment, shipped: Shipped) -> None:
        for host in self._hosts:
            host.ship(shipment, shipped)

    def _send(self, errand: Errand, done: Done) -> None:
        self._calls += 1
        number, epoch = self._calls, self.epoch
        self._outstanding[number] = _Outstanding(len(self._hosts), done)
        for at, host in enumerate(self._hosts):
            host.run(errand, lambda reply, at=at: self._answered(epoch, number, at, reply))

    def _answered(self, epoch: int, number: int, host: int, reply: Reply) -> None:
        found = self._outstanding.get(number)
        if epoch != self.epoch or found is None or not found.answered(host, reply):
            return
        del self._outstanding[number]
        found.done(found.merged())

    def _arrived(self, arrival: ArrayDelivery) -> None:
        """Let requests go on once the last host has made its part of an array."""
        expected = self._expected.get(arrival.transfer)
        if expected is None:
            return
        expected.missing -= 1
        if not expected.missing:
            del self._expected[arrival.transfer]
            expected.arrived()
            self._release(arrival.session, ("transfer", arrival.transfer))

    def _release(self, session: int, key: Any) -> None:
        holding = self._holding.get(session)
        if holding is None:
            return
        free = holding.release(key)
        if holding.idle:
            del self._holding[session]
        for go, refuse in free:
            if self._hosts:
                go()
            else:
                refuse(lost(self.number))
