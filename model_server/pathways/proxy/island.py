"""An island as the dispatcher sees it: hosts, incarnations, outstanding requests, incoming arrays.

Every request goes to all hosts of an island in one order, and their answers become one. An island
is up or lost as a whole: when it is lost, all outstanding requests are answered with the loss, and
its next incarnation begins with the programs that clients still hold, under their old handles.

Some requests are held because a handle that they name is not on the island yet: a program is being
compiled again, or an array is on its way from another island. Such a program or array blocks its
handles. A request that touches blocked handles is held and blocks all that it touches, so requests
on one handle stay in order and the others go on. Handles that it only reads, such as a model's
weights, it blocks only for requests that change them: the steps of two lanes do not wait for each
other.
"""

from __future__ import annotations

import logging
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from model_server.pathways.scheduling.answers import (
    Answered,
    IslandRequest,
    Reply,
    described,
    merged,
)
from model_server.pathways.scheduling.handles import INTERNAL, Fault, IslandIncarnation
from model_server.pathways.scheduling.routes import lost

logger = logging.getLogger(__name__)


class _Held(NamedTuple):
    changes: frozenset[int]
    keeps: frozenset[int]
    item: Any


class HandleHolding:
    """Blocked handles and held requests of one session on one island."""

    def __init__(self) -> None:
        self._blocks: dict[Any, frozenset[int]] = {}
        self._held: list[_Held] = []
        self._changed: set[int] = set()  # by held or blocking requests
        self._kept: set[int] = set()  # read by held requests

    @property
    def idle(self) -> bool:
        return not self._blocks

    def block(self, key: Any, handles: Iterable[int]) -> None:
        """Block handles until the key is released."""
        self._blocks[key] = frozenset(handles)
        self._changed |= self._blocks[key]

    def holds(self, changes: Iterable[int], item: Any, keeps: Iterable[int] = ()) -> bool:
        """Hold a request if it must wait; False: it may go.

        changes: handles that it makes, or may reuse or free. keeps: those that it only reads.
        """
        asked = _Held(frozenset(changes), frozenset(keeps), item)
        if (
            self._changed.isdisjoint(asked.changes)
            and self._changed.isdisjoint(asked.keeps)
            and self._kept.isdisjoint(asked.changes)
        ):
            return False
        self._held.append(asked)
        self._changed |= asked.changes
        self._kept |= asked.keeps
        return True

    def release(self, key: Any) -> list[Any]:
        """Return the requests that may go now, in their order."""
        self._blocks.pop(key, None)
        self._changed = set().union(*self._blocks.values())
        self._kept = set()
        held, self._held = self._held, []
        return [each.item for each in held if not self.holds(each.changes, each.item, each.keeps)]

    def drain(self) -> list[Any]:
        """Return all held requests, in their order, and unblock everything."""
        items = [each.item for each in self._held]
        self._blocks.clear()
        self._held.clear()
        self._changed.clear()
        self._kept.clear()
        return items


class Shipment(NamedTuple):
    """An array on its way to another island, which expects it under the transfer's number."""

    session: int
    array: int
    transfer: int
    addresses: Sequence[str]  # host:port of the workers of the other island


class ArrayDelivery(NamedTuple):
    """An array that another island sends."""

    session: int
    handle: int
    transfer: int
    devices: Sequence[int]  # in the order of the shards
    memory_kind: str  # "": the devices' default


Shipped = Callable[[Fault | None], None]


class IslandHost(Protocol):
    """A worker process, near or far. Calls and answers happen on the dispatcher's event loop."""

    description: Any  # InitResponse
    address: str  # host:port where other workers reach it; "" if they do not

    def run(self, request: IslandRequest, answered: Answered) -> None:
        """Hand over a request; answers come in any order."""
        ...

    def ship(self, shipment: Shipment, shipped: Shipped) -> None:
        """Send this host's shards; `shipped` is called once they left, or why they did not."""
        ...

    def expect(self, arrival: ArrayDelivery, arrived: Callable[[], None]) -> None:
        """Assemble an array as it arrives; `arrived` is called when it, or its error, is there."""
        ...

    def fail_transfer(self, transfer: int, fault: Fault) -> None:
        """Put a fault in place of an expected array that will not come."""
        ...

    def forget(self, session: int) -> None: ...

    def close(self) -> None: ...


class HeldPrograms:
    """Requests to compile, in their order, by session and the handle of their program."""

    def __init__(self) -> None:
        self._requests: dict[tuple[int, int], IslandRequest] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def note(self, handle: int, request: IslandRequest) -> None:
        self._requests[request.session, handle] = request

    def drop(self, session: int, handles: Iterable[int]) -> None:
        for handle in handles:
            self._requests.pop((session, handle), None)

    def forget(self, session: int) -> None:
        for key in [key for key in self._requests if key[0] == session]:
            del self._requests[key]

    def requests(self) -> list[tuple[int, IslandRequest]]:
        """Return (handle, request); under the same first handles they make the same handles."""
        return [(handle, request) for (_, handle), request in self._requests.items()]


Done = Callable[[Reply | Fault], None]
Arrived = Callable[[], None]


class _Outstanding:
    """A request that some hosts have not answered."""

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


class _IncomingArray:
    """An array that some hosts have not received."""

    def __init__(self, hosts: int, arrived: Arrived) -> None:
        self.missing = hosts
        self.arrived = arrived


class Island:
    """One island. Belongs to the dispatcher's event loop."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.epoch = 0  # counts the incarnations
        self.programs = HeldPrograms()
        self.description: Any = None  # InitResponse of its last incarnation
        self._hosts: Sequence[IslandHost] = ()
        self._outstanding: dict[int, _Outstanding] = {}
        self._holding: defaultdict[int, HandleHolding] = defaultdict(HandleHolding)
        self._expected: dict[int, _IncomingArray] = {}  # by transfer
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
        """Start an incarnation with these hosts, and compile the held programs again."""
        self.epoch += 1
        self._hosts = hosts
        self.description = described([host.description for host in hosts])
        for handle, request in self.programs.requests():
            self._holding[request.session].block(handle, (handle,))

            def done(outcome: Reply | Fault, session: int = request.session, key: int = handle):
                self._release(session, key)

            self._send(request, done)

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

    def call(self, request: IslandRequest, done: Done) -> None:
        """Send a request to all hosts. `done` is called once, maybe before this returns."""
        holding = self._holding.get(request.session)
        if not self._hosts:
            done(lost(self.number))
        elif holding is None:
            self._send(request, done)
        else:
            keeps = frozenset(request.keeps())
            changes = frozenset(request.touches) - keeps
            if not holding.holds(changes, (lambda: self._send(request, done), done), keeps):
                self._send(request, done)

    def ship(self, shipment: Shipment, shipped: Shipped) -> None:
        """Send an array of this island to another, from each of its hosts, once it is here."""
        holding = self._holding.get(shipment.session)
        if holding is None or not holding.holds(
            (), (lambda: self._ship(shipment, shipped), shipped), (shipment.array,)
        ):
            self._ship(shipment, shipped)

    def expect(self, arrival: ArrayDelivery, arrived: Arrived) -> None:
        """Receive an array of another island; requests that name it are held until it is here.

        `arrived` is called once it is, or an error in its place; not if the island is lost.
        """
        self._holding[arrival.session].block(("transfer", arrival.transfer), (arrival.handle,))
        self._expected[arrival.transfer] = _IncomingArray(len(self._hosts), arrived)
        for host in self._hosts:
            host.expect(arrival, lambda: self._arrived(arrival))

    def fail_transfer(self, transfer: int, fault: Fault) -> None:
        """Put a fault under the handle of an incoming array that will not come."""
        if transfer in self._expected:
            for host in self._hosts:
                host.fail_transfer(transfer, fault)

    def forget(self, session: int) -> None:
        """Free everything of a session."""
        self.programs.forget(session)
        self._holding.pop(session, None)
        for host in self._hosts:
            host.forget(session)

    def _ship(self, shipment: Shipment, shipped: Shipped) -> None:
        for host in self._hosts:
            host.ship(shipment, shipped)

    def _send(self, request: IslandRequest, done: Done) -> None:
        self._calls += 1
        number, epoch = self._calls, self.epoch
        self._outstanding[number] = _Outstanding(len(self._hosts), done)
        for at, host in enumerate(self._hosts):
            host.run(request, lambda reply, at=at: self._answered(epoch, number, at, reply))

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


class ArrayCopies:
    """Copies of arrays from one island to another, which the islands' workers carry out."""

    def __init__(self, islands: Mapping[int, Island]) -> None:
        self._islands = islands
        self._last = secrets.randbits(40) << 20  # transfer; other proxy servers use other numbers
        self._under_way: dict[int, tuple[IslandIncarnation, IslandIncarnation]] = {}  # from, to

    def number(self) -> int:
        """Return the number of a new transfer."""
        self._last += 1
        return self._last

    def start(
        self,
        array: int,
        source: IslandIncarnation,
        to: IslandIncarnation,
        arrival: ArrayDelivery,
    ) -> None:
        """Send an array to an island, if neither was lost since the client asked for it."""
        taking, giving = self._islands[to.island], self._islands[source.island]
        if not taking.up or taking.epoch != to.epoch:
            return  # the result is lost: its handle is of that incarnation
        transfer = arrival.transfer
        self._under_way[transfer] = (source, to)
        taking.expect(arrival, lambda: self._arrived(transfer))
        if not giving.up or giving.epoch != source.epoch:
            taking.fail_transfer(transfer, lost(source.island))
            return

        def shipped(fault: Fault | None) -> None:
            if fault is not None:
                taking.fail_transfer(transfer, fault)

        giving.ship(Shipment(arrival.session, array, transfer, taking.addresses), shipped)

    def lose(self, incarnation: IslandIncarnation) -> None:
        """Fail the copies from an island that is lost, and drop those to it.

        Also those that it said it had sent: they may have been lost on their way.
        """
        for transfer, (source, to) in list(self._under_way.items()):
            if incarnation in (source, to):
                del self._under_way[transfer]
            if source == incarnation:
                self._islands[to.island].fail_transfer(transfer, lost(source.island))

    def _arrived(self, transfer: int) -> None:
        self._under_way.pop(transfer, None)
