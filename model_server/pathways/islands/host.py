"""One process of an island as the front sees it, and what the front hands it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from model_server.pathways.scheduling.handles import Fault
from model_server.pathways.scheduling.merging import Buffer, Reply


class Errand(NamedTuple):
    """A client's request on its way to the hosts of an island."""

    session: int
    made: int  # first of the handles for the worker to give out in its answer
    request: bytes  # an IfrtRequest
    buffers: Mapping[int, Buffer]  # host buffers that it names
    touches: tuple[int, ...] = ()  # handles that it reads or makes
    keeps: Callable[[], Collection[int]] = tuple  # those of them that it surely only reads


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


Answered = Callable[[Reply], None]
Shipped = Callable[[Fault | None], None]


class IslandHost(Protocol):
    """A worker process, near or far. Calls and answers happen on the front's event loop."""

    description: Any  # InitResponse
    address: str  # host:port where other workers reach it; "" if they do not

    def run(self, errand: Errand, answered: Answered) -> None:
        """Hand over a request; answers come in any order."""
        ...

    def ship(self, shipment: Shipment, shipped: Shipped) -> None:
        """Send this host's shards; `shipped` is called once they left, or why they did not."""
        ...

    def expect(self, arrival: ArrayDelivery, arrived: Callable[[], None]) -> None:
        """Make an array of what comes; `arrived` is called when it, or its error, is there."""
        ...

    def astray(self, transfer: int, fault: Fault) -> None:
        """Tell that an expected array does not come."""
        ...

    def forget(self, session: int) -> None: ...

    def close(self) -> None: ...
