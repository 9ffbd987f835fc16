"""Order of requests: which of those that wait go to their islands now.

Pure. Each client has a queue per island, served in the order of its requests. A request of several
islands leaves all its queues at once, so every island sees such requests in one global order, and
islands whose hosts compute together never wait for each other. Among clients, those with work
waiting share an island in proportion to their weights (start-time fair queueing): each dispatch
moves a client's virtual time on by cost / weight, and the client that is furthest behind is next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any

FIRST_S = 0.001  # expected of a program that was not measured yet
_KEPT = 5  # measurements; their median, as one pause of the machine would starve the client


class Durations:
    """Expected durations of programs, measured while clients compete: one alone is not charged."""

    def __init__(self) -> None:
        self._took: dict[tuple[int, int], deque[float]] = {}  # (session, program) -> seconds
        self._free: dict[int, float] = {}  # island -> when its last measured work ended

    def expected(self, session: int, program: int) -> float:
        """Return the seconds that a program of a session is expected to take."""
        return median(self._took.get((session, program), (FIRST_S,)))

    def measured(
        self, session: int, program: int, island: int, sent_s: float, ended_s: float
    ) -> None:
        """Note that work was sent and has ended; an island does one thing after the other."""
        took = max(0.0, ended_s - max(sent_s, self._free.get(island, 0.0)))
        self._free[island] = ended_s
        self._took.setdefault((session, program), deque(maxlen=_KEPT)).append(took)

    def forget(self, session: int) -> None:
        for key in [key for key in self._took if key[0] == session]:
            del self._took[key]


ALONE = 8  # device tasks in flight of the only client of an island
TOGETHER = 2  # of each island, when clients compete: what waits here can still be reordered


@dataclass(slots=True, eq=False)
class Queued:
    """A request in its queues."""

    item: Any
    client: int
    islands: tuple[int, ...]
    cost: float  # 0: occupies no device, and no place in the window
    touches: Collection[int]  # handles that it reads or makes
    left: bool = False


@dataclass(slots=True)
class _Share:
    weight: float
    paused: bool = False
    waiting: int = 0


@dataclass(slots=True)
class _Track:
    """One island: a queue and a virtual time per client."""

    queues: dict[int, deque[Queued]] = field(default_factory=dict[int, "deque[Queued]"])
    times: dict[int, float] = field(default_factory=dict[int, float])
    in_flight: dict[int, int] = field(default_factory=dict[int, int])
    now: float = 0.0

    def window(self) -> int:
        competing = self.queues.keys() | self.in_flight.keys()
        return ALONE if len(competing) < 2 else TOGETHER

    def open(self) -> bool:
        return sum(self.in_flight.values()) < self.window()

    def by_time(self) -> list[int]:
        """Clients with something waiting, the one furthest behind first."""
        return sorted(self.queues, key=lambda client: self.times.get(client, 0.0))

    def charge(self, client: int, cost: float, weight: float) -> None:
        """Count a dispatch. A client that was idle starts from now: it has saved nothing up."""
        start = max(self.times.get(client, 0.0), self.now)
        self.now = start
        self.times[client] = start + cost / weight
        self.in_flight[client] = self.in_flight.get(client, 0) + 1


class GangOrder:
    """Queues of all clients and islands."""

    def __init__(self) -> None:
        self._clients: dict[int, _Share] = {}
        self._lanes: dict[int, _Track] = {}

    def join(self, client: int, weight: float = 1.0) -> None:
        """Add a client. weight: its share of an island where clients compete; above 0."""
        self._clients[client] = _Share(weight)

    def leave(self, client: int) -> None:
        """Forget a client, with its requests that wait or are in flight."""
        self._clients.pop(client, None)
        for lane in self._lanes.values():
            for waiting in lane.queues.pop(client, ()):
                waiting.left = True
            lane.times.pop(client, None)
            lane.in_flight.pop(client, None)

    def pause(self, client: int, paused: bool) -> None:
        """Hold back a client's waiting requests, or let them go on."""
        if client in self._clients:
            self._clients[client].paused = paused

    def waiting(self, client: int) -> int:
        """Return how many of a client's requests wait."""
        found = self._clients.get(client)
        return found.waiting if found else 0

    def competing(self, island: int) -> bool:
        """Tell whether several clients have work on an island."""
        lane = self._lanes.get(island)
        return lane is not None and lane.window() == TOGETHER

    def in_flight(self, island: int) -> int:
        """Return how many works an island was given that are not finished."""
        lane = self._lanes.get(island)
        return sum(lane.in_flight.values()) if lane else 0

    def passes(self, client: int, island: int, handles: Collection[int]) -> bool:
        """Tell whether a request that only reads these may go before all that a client has waiting.

        So a client that fetches a result does not wait until the island takes its later requests.
        """
        lane = self._lanes.get(island)
        waiting = lane.queues.get(client, ()) if lane else ()
        free = not self._clients[client].paused
        return free and all(each not in item.touches for item in waiting for each in handles)

    def submit(
        self,
        client: int,
        islands: tuple[int, ...],
        cost: float,
        item: Any,
        touches: Collection[int] = (),
    ) -> None:
        """Queue a request behind the client's earlier ones of the same islands."""
        waiting = Queued(item, client, islands, cost if len(islands) == 1 else 0.0, touches)
        for island in islands:
            lane = self._lanes.setdefault(island, _Track())
            lane.queues.setdefault(client, deque()).append(waiting)
        self._clients[client].waiting += 1

    def dispatch(self) -> Iterator[Any]:
        """Yield the items that go now, each after it has left its queues."""
        moved = True
        while moved:
            moved = False
            for island in list(self._lanes):
                for item in self._serve(island):
                    moved = True
                    yield item

    def finished(self, client: int, island: int) -> None:
        """Give back the place in the window of one work of a client."""
        lane = self._lanes.get(island)
        if lane is None or client not in lane.in_flight:
            return
        lane.in_flight[client] -= 1
        if not lane.in_flight[client]:
            del lane.in_flight[client]

    def lost(self, island: int) -> None:
        """Give back all places of an island. Requests that wait for it go on, to be refused."""
        if island in self._lanes:
            self._lanes[island].in_flight.clear()

    def _serve(self, island: int) -> Iterator[Any]:
        lane = self._lanes[island]
        while (waiting := self._next(lane)) is not None:
            if waiting.cost:
                lane.charge(waiting.client, waiting.cost, self._clients[waiting.client].weight)
            self._take_out(waiting)
            yield waiting.item

    def _next(self, lane: _Track) -> Queued | None:
        """Return the first head, by virtual time, that may go."""
        for client in lane.by_time():
            head = lane.queues[client][0]
            if self._clients[client].paused or (head.cost and not lane.open()):
                continue
            if all(self._lanes[each].queues[client][0] is head for each in head.islands):
                return head
        return None

    def _take_out(self, waiting: Queued) -> None:
        for island in waiting.islands:
            queue = self._lanes[island].queues[waiting.client]
            queue.popleft()
            if not queue:
                del self._lanes[island].queues[waiting.client]
        self._clients[waiting.client].waiting -= 1
