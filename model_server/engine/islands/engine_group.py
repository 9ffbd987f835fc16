"""Engines of one model on devices of their own, which islands are. One interface for all.

An island has one engine, or one for each lane of a pipeline over several islands. A request goes to
the engine with the fewest. When an engine's devices are lost, its sequences go on with another
engine from their last delivered token, or wait until one is added; callers see no more than a
pause.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

from model_server.engine.engine import Announce, Engine, EngineRequest, EngineStats, SequenceUpdate
from model_server.engine.failure import DevicesLost
from model_server.engine.ids import Ids
from model_server.engine.outbox import Deliver
from model_server.engine.request import Begun
from model_server.engine.running.ops import Runner
from model_server.engine.types import RowResult
from sax.errors import ReplicaLost, SaxError

log = logging.getLogger(__name__)

_LOOK_S = 0.02  # between looks at a group that drains

Lost = Callable[[str, DevicesLost], None]
# Makes an engine of a runner; the other arguments are those of `Engine` with these names.
Make = Callable[..., Engine]


class IslandLane(NamedTuple):
    """Names an engine."""

    island: str
    number: int


@dataclass(slots=True)
class Placed:
    """A sequence that has not ended, where it is computed."""

    request: EngineRequest
    lane: IslandLane | None = None  # that computes it; None: it waits for one
    cancelled: bool = False  # it may not go on elsewhere


class EngineGroup:
    """Has the methods of `Engine`, which see, thread-safe, too."""

    def __init__(self, deliver: Deliver, make: Make = Engine, on_lost: Lost | None = None) -> None:
        """make: with the options that all engines share. on_lost: called with the island and the
        failure, on a thread that must not be blocked, after its sequences were moved."""
        self._deliver = deliver
        self._make = make
        self._on_lost = on_lost
        self._ids = Ids()
        self._changed = threading.RLock()  # guards all below; taken before an engine's own
        self._engines: dict[IslandLane, Engine] = {}
        self._lost: list[Engine] = []  # to close
        self._live: dict[int, Placed] = {}
        self._reserved: list[tuple[str, IslandLane]] = []  # account, place
        self._past: list[EngineStats] = []  # of engines that were lost
        self._failure: BaseException | None = None  # of the last one that was

    @property
    def islands(self) -> Collection[str]:
        """Those that compute."""
        with self._changed:
            return tuple(dict.fromkeys(lane.island for lane in self._engines))

    @property
    def failed(self) -> BaseException | None:
        """Why nothing can be computed, until an island is added."""
        with self._changed:
            broken = (engine.failed for engine in self._engines.values())
            return next(filter(None, broken), None if self._engines else self._failure)

    def add(self, island: str, *runners: Runner) -> None:
        """Compute on one more island, with an engine for each runner; first what waits for one."""
        made = {IslandLane(island, number): runner for number, runner in enumerate(runners)}
        engines = {lane: self._engine(lane, runner) for lane, runner in made.items()}
        with self._changed:
            lost, self._lost = self._lost, []
        for each in lost:  # their threads have ended
            each.close()
        with self._changed:
            assert not engines.keys() & self._engines.keys(), "it computes already"
            self._engines.update(engines)
            for id, live in self._live.items():
                if self._waits(id):
                    self._resume(id, live)

    def _engine(self, lane: IslandLane, runner: Runner) -> Engine:
        return self._make(
            runner,
            self._pass_on,
            ids=self._ids,
            take_over=lambda failure, begun: self._move(lane, failure, begun),
        )

    def lose(self, failure: DevicesLost, island: str | None = None) -> None:
        """Take note that the devices of an island are gone; None: those of all."""
        with self._changed:
            engines = [
                engine for lane, engine in self._engines.items() if island in (None, lane.island)
            ]
        for engine in engines:
            engine.lose(failure)

    def give_up(self, error: SaxError) -> None:
        """Fail the sequences that wait for an island."""
        with self._changed:
            waiting = list(filter(self._waits, self._live))
            for id in waiting:
                del self._live[id]
        if waiting:
            self._deliver([SequenceUpdate(id, RowResult(), error=error) for id in waiting])

    # As an engine

    def reserve(self, engine_request: EngineRequest) -> None:
        with self._changed:
            lane = self._freest()
            try:
                self._engines[lane].reserve(engine_request)
            except SaxError:
                if not is_lost(self._engines[lane]):
                    raise
                self.reserve(engine_request)  # it was lost just now
                return
            self._reserved.append((engine_request.account, lane))

    def release(self, account: str = "") -> None:
        with self._changed:
            if (lane := self._unreserve(account)) is not None:
                self._engines[lane].release(account)

    def submit(
        self,
        engine_request: EngineRequest,
        *,
        reserved: bool = False,
        announce: Announce | None = None,
    ) -> int:
        with self._changed:
            held = self._unreserve(engine_request.account) if reserved else None
            if held is not None and is_lost(self._engines[held]):
                held = None
            lane = held or self._freest()

            def begin(id: int) -> None:
                self._live[id] = Placed(engine_request, lane)
                if announce is not None:
                    announce(id)

            engine = self._engines[lane]
            try:
                return engine.submit(engine_request, reserved=held is not None, announce=begin)
            except SaxError:
                if not is_lost(engine):
                    raise
            return self.submit(engine_request, announce=announce)  # it was lost just now

    def cancel(self, sequence: int) -> None:
        with self._changed:
            live = self._live.get(sequence)
            if live is None:
                return
            if live.lane is not None:
                live.cancelled = True
                self._engines[live.lane].cancel(sequence)
                return
            del self._live[sequence]
        self._deliver([SequenceUpdate(sequence, RowResult(), "cancelled")])

    def has_slot(self, sequence: int) -> bool:
        with self._changed:
            live = self._live.get(sequence)
            lane = live.lane if live is not None else None
            return lane is not None and self._engines[lane].has_slot(sequence)

    def drain(self, timeout_s: float) -> bool:
        """Refuse new requests and wait for live ones; return False on timeout."""
        ends_s = time.monotonic() + timeout_s
        with self._changed:
            engines = list(self._engines.values())
        for engine in engines:  # all refuse before any is waited for
            engine.drain(0.0)
        while not self._is_still(engines, ends_s):
            if time.monotonic() >= ends_s:
                return False
            time.sleep(_LOOK_S)  # what an island loses goes on elsewhere, or waits
            with self._changed:
                engines = list(self._engines.values())
        return True

    def _is_still(self, engines: list[Engine], ends_s: float) -> bool:
        still = [engine.drain(max(0.0, ends_s - time.monotonic())) for engine in engines]
        with self._changed:
            return all(still) and not self._live

    def close(self) -> None:
        with self._changed:
            engines = [*self._engines.values(), *self._lost]
            self._lost.clear()
        for engine in engines:
            engine.close()
        self.give_up(ReplicaLost("the model was unloaded while its devices were lost"))

    def stats(self) -> EngineStats:
        with self._changed:
            every = [*self._past, *(engine.stats() for engine in self._engines.values())]
            waiting = sum(live.lane is None for live in self._live.values())
        names = [each.name for each in dataclasses.fields(EngineStats)]
        sums = {name: sum(getattr(each, name) for each in every) for name in names}
        sums["waiting"] += waiting
        return EngineStats(**sums)

    # Under the lock

    def _freest(self) -> IslandLane:
        """Raises ReplicaLost if there is no engine."""
        for lane in self._by_load():
            return lane
        raise ReplicaLost(
            f"all devices of this replica are lost ({self._failure}); try another replica, or "
            "again in some seconds"
        )

    def _by_load(self) -> list[IslandLane]:
        """Return the engines that compute, the freest first."""
        loads = {
            lane: engine.stats()
            for lane, engine in self._engines.items()
            if not is_lost(engine)  # and not taken out yet
        }
        return sorted(loads, key=lambda lane: loads[lane].running + loads[lane].waiting)

    def _waits(self, id: int) -> bool:
        """Return True for a sequence that no engine computes."""
        return self._live[id].lane is None

    def _resume(self, id: int, live: Placed) -> None:
        """Let the freest engine that takes it go on with a sequence; without one, it waits."""
        for lane in self._by_load():
            try:
                self._engines[lane].resume(id, live.request)
            except SaxError:  # it failed, or closes, at this moment
                continue
            live.lane = lane
            return
        live.lane = None

    def _unreserve(self, account: str) -> IslandLane | None:
        """Return where a place is held for the account, if it still is."""
        for place, (whose, lane) in enumerate(self._reserved):
            if whose == account:
                del self._reserved[place]
                return lane
        return None

    # Engines' threads

    def _pass_on(self, updates: list[SequenceUpdate]) -> None:
        ended = [each.sequence for each in updates if each.finish or each.error]
        if ended:
            with self._changed:
                for id in ended:
                    self._live.pop(id, None)
        self._deliver(updates)

    def _move(self, lane: IslandLane, failure: DevicesLost, begun: list[Begun]) -> Collection[int]:
        """Take an engine out, and let others go on with its sequences."""
        with self._changed:
            self._take_out(lane, failure)
            mine = [each for each in begun if each.id in self._live]
            cancelled = [each.id for each in mine if self._live[each.id].cancelled]
            for id in cancelled:
                del self._live[id]
            for each in mine:
                if (live := self._live.get(each.id)) is not None:
                    live.request = each.rest_of(live.request)
                    self._resume(each.id, live)
            last = lane.island not in self.islands
        log.warning(
            "%s is lost (%s): %d sequences go on elsewhere", lane.island, failure, len(mine)
        )
        if cancelled:
            self._deliver([SequenceUpdate(id, RowResult(), "cancelled") for id in cancelled])
        if last and self._on_lost is not None:
            self._on_lost(lane.island, failure)
        return [each.id for each in mine]

    def _take_out(self, lane: IslandLane, failure: DevicesLost) -> None:
        lost = self._engines.pop(lane)
        self._lost.append(lost)
        self._past.append(_totals(lost.stats()))
        self._reserved = [held for held in self._reserved if held[1] != lane]
        self._failure = failure
        self.lose(failure, lane.island)  # the other lanes, which may rest


def is_lost(engine: Engine) -> bool:
    """Return True if its devices are lost, even if its thread has not noticed yet."""
    return isinstance(engine.failed, DevicesLost)


def _totals(stats: EngineStats) -> EngineStats:
    """Return what counts since the start, without what was so at the time."""
    return dataclasses.replace(
        stats, running=0, waiting=0, slots=0, slots_used=0, pages=0, pages_used=0, pages_cached=0
    )
