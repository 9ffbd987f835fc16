"""The roster: which workers are there, which islands they make, and since when.

Pure: times are handed in. An island is up when all its hosts have enrolled and are ready; when one
of them goes, all of it is lost, and the others are told to start again, because a group of
processes that computes together cannot lose one. Device ids go by island: island i has those from
i * devices on, whichever processes it is made of.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from model_server.pathways.resources.messages import (
    ANY,
    Enrol,
    IslandLine,
    IslandPlacement,
    Islands,
    Missing,
    TurnedAway,
)
from sax.errors import InvalidRequest

_SHAPE = re.compile(r"(cpu|gpu|tpu)([a-z0-9]*):(\d+(?:x\d+)*)")
# Chips with two cores that jax shows as two devices.
_TWO_DEVICES = ("v2", "v3")


class InstanceType(NamedTuple):
    """The devices of one island."""

    platform: str  # "cpu", "tpu", "gpu"
    kind: str  # "v5e"; "" for CPUs
    devices: int


def parse_instance_type(text: str) -> InstanceType:
    """Raises InvalidRequest."""
    found = _SHAPE.fullmatch(text.strip().lower())
    if found is None:
        raise InvalidRequest(
            f"--instance_type={text!r}: say the kind of devices and how many one island has, such "
            "as cpu:2, gpu:8 or tpuv5e:4x8",
            param="instance_type",
        )
    count = math.prod(map(int, found[3].split("x")))
    if not count:
        raise InvalidRequest(f"--instance_type={text!r} has no devices", param="instance_type")
    return InstanceType(found[1], found[2], count * (2 if found[2] in _TWO_DEVICES else 1))


_EVENTS = 200


@dataclass(slots=True)
class _Enrolled:
    """A worker that is there."""

    said: Enrol
    island: int
    heard_s: float
    placed: bool = False
    devices: int | None = None  # once it is ready


@dataclass(slots=True)
class _Group:
    """An island's workers, by host."""

    hosts: dict[int, _Enrolled] = field(default_factory=dict[int, _Enrolled])
    count: int = 0  # 0: not known yet
    since_s: float = 0.0
    note: str = "no worker has come yet"

    @property
    def full(self) -> bool:
        return bool(self.count) and len(self.hosts) == self.count

    @property
    def up(self) -> bool:
        return self.full and all(each.devices is not None for each in self.hosts.values())


class Happening(NamedTuple):
    """Something that the status page shows."""

    at_s: float
    text: str


class Roster:
    """Workers and the islands that they make."""

    def __init__(self, instance: InstanceType, islands: int, lease_s: float) -> None:
        self.instance = instance
        self.lease_s = lease_s
        self.happenings: deque[Happening] = deque(maxlen=_EVENTS)
        self._groups = {number: _Group() for number in range(islands)}
        self._workers: dict[str, _Enrolled] = {}

    def enrol(self, said: Enrol, now_s: float) -> Missing | TurnedAway | None:
        """Take in a worker. None: its island is full now, see `placed`."""
        if (refusal := self._refusal(said)) is not None:
            self.tell(f"a worker at {said.address} was turned away: {refusal}", now_s)
            return TurnedAway(refusal)
        number = self._number(said)
        if number is None:
            return Missing("a place: all islands have their workers, and one may be lost")
        group = self._groups[number]
        group.count = said.hosts
        worker = _Enrolled(said, number, now_s, placed=said.started)
        group.hosts[said.host] = self._workers[said.incarnation] = worker
        self.tell(f"host {said.host} of island {number} came ({said.address})", now_s)
        group.note = "its workers start"
        if group.full:
            return None
        missing = sorted(set(range(group.count)) - set(group.hosts))
        group.note = f"waits for host {', '.join(map(str, missing))}"
        return Missing(f"host {', '.join(map(str, missing))} of island {number}")

    def placed(self, island: int) -> dict[str, IslandPlacement]:
        """Return what each worker of a full island is to start as, by incarnation."""
        group = self._groups[island]
        coordinator = group.hosts[0].said.coordinator if group.count > 1 else ""
        each = self.instance.devices // group.count
        place = IslandPlacement(
            island, island * self.instance.devices, each, self.instance.platform, coordinator
        )
        return {worker.said.incarnation: place for worker in group.hosts.values()}

    def island_of(self, incarnation: str) -> int | None:
        worker = self._workers.get(incarnation)
        return None if worker is None else worker.island

    def ready(self, incarnation: str, devices: int, now_s: float) -> str:
        """Note that a worker's devices are there. Returns why it must end; "": it need not."""
        worker = self._workers.get(incarnation)
        if worker is None:
            return "it is not enrolled (any more)"
        group = self._groups[worker.island]
        expected = self.instance.devices // group.count
        if devices > expected:
            return (
                f"it has {devices} devices and --instance_type of the resource manager gives "
                f"{expected} to each host: start it with as many, or say what islands are made of"
            )
        worker.devices = devices
        if group.up:
            group.since_s, group.note = now_s, ""
            self.tell(f"island {worker.island} is up", now_s)
        return ""

    def heard(self, incarnation: str, now_s: float) -> None:
        """Note a heartbeat."""
        if (worker := self._workers.get(incarnation)) is not None:
            worker.heard_s = now_s

    def stood_still(self, for_s: float, now_s: float) -> None:
        """Extend all leases by a time in which this process was stopped."""
        for worker in self._workers.values():
            worker.heard_s = min(now_s, worker.heard_s + for_s)

    def gone(self, incarnation: str, why: str, now_s: float) -> list[str]:
        """Drop a worker. Returns the incarnations of the others of its island, which must end."""
        worker = self._workers.pop(incarnation, None)
        if worker is None:
            return []
        group = self._groups[worker.island]
        del group.hosts[worker.said.host]
        group.since_s = now_s
        group.note = f"host {worker.said.host} was lost: {why}"
        self.tell(f"island {worker.island}: {group.note}", now_s)
        others = [each.said.incarnation for each in group.hosts.values()]
        if group.count == 1 or not worker.placed:
            return []
        for other in others:
            del self._workers[other]
        group.hosts.clear()
        return others

    def start(self, island: int) -> None:
        """Note that the workers of a full island were told what to start as."""
        for worker in self._groups[island].hosts.values():
            worker.placed = True

    def silent(self, now_s: float) -> list[str]:
        """Return the incarnations of workers whose leases have ended."""
        return [
            incarnation
            for incarnation, worker in self._workers.items()
            if now_s - worker.heard_s > self.lease_s
        ]

    def tell(self, text: str, now_s: float) -> None:
        """Add to what the status page shows."""
        self.happenings.append(Happening(now_s, text))

    def islands(self) -> Islands:
        return Islands(len(self._groups), list(self._lines()))

    def _lines(self) -> Iterator[IslandLine]:
        for number, group in self._groups.items():
            hosts = [group.hosts[host] for host in sorted(group.hosts)]
            yield IslandLine(
                number,
                group.up,
                [each.said.address for each in hosts],
                [each.said.incarnation for each in hosts],
                sum(each.devices or 0 for each in hosts),
                group.since_s,
                group.note,
            )

    def _refusal(self, said: Enrol) -> str | None:
        """Return why a worker can have no place here."""
        if not (0 <= said.host < said.hosts) or said.hosts > self.instance.devices:
            return f"it says that it is host {said.host} of {said.hosts} of an island"
        if said.island != ANY and said.island not in self._groups:
            last = len(self._groups) - 1
            return (
                f"it wants to be of island {said.island} and the islands are 0 to {last}: start "
                "the resource manager with a larger --instance_count"
            )
        group = self._groups.get(said.island)
        if group and group.hosts and group.count != said.hosts:
            return f"it says that its island has {said.hosts} hosts; the others say {group.count}"
        return None

    def _number(self, said: Enrol) -> int | None:
        """Return the island that has a place for this host."""
        wanted = list(self._groups) if said.island == ANY else [said.island]
        for number in wanted:
            group = self._groups[number]
            if said.host not in group.hosts and group.count in (0, said.hosts):
                return number
            if not group.hosts:
                return number
        return None
