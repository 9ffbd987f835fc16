"""Leader election and leadership of one admin server.

It follows the log until the leader falls silent, writes the next record to claim the lead, and then
beats until another server has written after it. Any number of admin servers may run: the log lets
only one through. The caller passes in what to do while leading.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import re
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from admin_server.cell.cell import Cell
from admin_server.condition import ChangeSignal
from admin_server.ledger.ledger import Ledger
from admin_server.storage.envelope import CorruptLog, Position, Series
from admin_server.storage.store_check import StoreHealth
from sax.client.location import LOCATION
from sax.errors import AdminUnavailable, NotLeading
from sax.names import CellId
from sax.storage.object_store import ObjectStore, StoreUnavailable
from sax.types import ServerInfo

_log = logging.getLogger(__name__)


class AdminRole:
    """This admin's role: leader (owns the cell) or follower (knows the leader).

    Written only by the leadership, read by every service of the process.
    """

    def __init__(self, cell_id: CellId, health: StoreHealth) -> None:
        self.cell_id = cell_id
        self.health = health
        self.settled = asyncio.Event()  # the first role is known
        self.changed = ChangeSignal()  # posted when the role or its trouble changes
        self.cell: Cell | None = None  # set while this server leads
        self.term = 0  # our term while we lead
        self.leader = ""  # host:port of the leader, "" if unknown
        self.trouble = "it has just started"  # why the leader is unknown

    def take(self, cell: Cell, term: int, address: str) -> None:
        """This server leads from now on."""
        self.cell, self.term, self.leader, self.trouble = cell, term, address, ""
        self.settled.set()
        self.changed.post()

    def follow(self, leader: str) -> None:
        """Another server leads."""
        self._leave(leader, "")

    def wait(self, trouble: str) -> None:
        """The leader is unknown."""
        self._leave("", trouble)

    def require(self) -> Cell:
        """The cell. Raises NotLeading, with the leader's address if known."""
        if self.cell is None:
            raise NotLeading(f"{self.describe()}: ask the leader", param=self.leader)
        return self.cell

    def warnings(self) -> list[str]:
        """Conditions that need an operator, but refuse no change yet."""
        return [*self.health.warnings, *(self.cell.warnings() if self.cell is not None else ())]

    def describe(self) -> str:
        if self.cell is not None:
            return f"leads {self.cell_id} since record {self.term}"
        if self.leader:
            return f"follows the admin server of {self.cell_id} at {self.leader}"
        return f"waiting for a leader of {self.cell_id}" + (
            f" ({self.trouble})" if self.trouble else ""
        )

    def _leave(self, leader: str, trouble: str) -> None:
        cell, self.cell, self.term = self.cell, None, 0
        news = (self.leader, self.trouble) != (leader, trouble) or cell is not None
        self.leader, self.trouble = leader, trouble
        self.settled.set()
        if cell is not None:
            cell.dismiss()
        if news:
            self.changed.post()


class ServerMembership(msgspec.Struct, frozen=True):
    """Servers, with each shared list of model paths stored once."""

    paths: list[tuple[str, ...]]
    servers: list[tuple[ServerInfo, int]]  # without model paths, and their index in `paths`
    sequence: int = 0  # the last record when this was written; 0: by a version that kept none


def encode_membership(infos: Sequence[ServerInfo], sequence: int) -> bytes:
    numbers: dict[tuple[str, ...], int] = {}
    servers = [
        (replace(info, model_paths=()), numbers.setdefault(info.model_paths, len(numbers)))
        for info in infos
    ]
    return msgspec.json.encode(ServerMembership(list(numbers), servers, sequence))


def decode_membership(data: bytes) -> tuple[list[ServerInfo], int]:
    """The servers, and the last record when they were written. Raises msgspec.DecodeError."""
    stored = msgspec.json.decode(data, type=ServerMembership)
    infos = [replace(info, model_paths=stored.paths[number]) for info, number in stored.servers]
    return infos, stored.sequence


class LeaderBeat(msgspec.Struct, frozen=True):
    """A leader's heartbeat, written about once a second."""

    admin: str  # its id
    address: str  # where it listens
    sequence: int  # the last record it wrote
    process: str = ""  # its mark (see process_mark)
    resigned: bool = False  # its last beat: anyone may lead now


@dataclass(frozen=True, slots=True)
class Life:
    """A leader as observed; any change of it is a sign of life."""

    term: int  # of the newest leader in the log
    place: Position | None = None  # of the newest beat
    beat: LeaderBeat | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """Decides, from the leader's beats, whether a cell has a live leader.

    Pure, and by the follower's own clock alone: the clocks of two machines need not agree. A wrong
    decision only costs a needless change of leader, because the log is the fence.
    """

    patience_s: float  # silence after which the leader counts as gone
    life: Life | None = None  # None: not looked yet
    since_s: float = 0.0  # when `life` was first seen, in unbroken observation
    looked_s: float = 0.0

    def look(self, life: Life, now: float) -> Lease:
        """The lease after a successful look into the store."""
        # After a gap without looks (a store that stalled for us may have stalled for the leader
        # too) nothing is known of what happened meanwhile: start observing anew.
        broken = now - self.looked_s > self.patience_s / 2
        if self.life != life or broken:
            return replace(self, life=life, since_s=now, looked_s=now)
        return replace(self, looked_s=now)

    def vacant(self, now: float) -> bool:
        """True if another server may lead: at once if nobody ever led or the leader resigned."""
        if self.life is None:
            return False
        beat, place = self.life.beat, self.life.place
        if place is None or beat is None:
            # A new leader is in the log before its first beat.
            return self.life.term == 0 or self._silent(now)
        if beat.resigned and place[0] >= self.life.term:
            return True
        return self._silent(now)

    @property
    def leader(self) -> str:
        """Address of the leader, "" if unknown."""
        beat = self.life.beat if self.life else None
        return beat.address if beat is not None and not beat.resigned else ""

    def _silent(self, now: float) -> bool:
        return now - self.since_s >= self.patience_s


# A mark of this process on this machine, so that others here can tell when it is gone.
#
# An admin server restarted after a crash can then lead at once instead of waiting out its own
# silence. Needs /proc; elsewhere no process is ever considered gone.

_PROC = Path("/proc")


def own_mark() -> str:
    """Machine, process namespace, process id and start time; "" if unavailable."""
    machine, pid = _machine(), os.getpid()
    started = _started(pid)
    return f"{machine} {pid} {started}" if machine and started else ""


def is_gone(mark: str) -> bool:
    """True if the process has ended; False if it ran elsewhere, where we cannot tell."""
    parts = mark.split(" ")
    if len(parts) != 3 or parts[0] != _machine():
        return False
    return _started(int(parts[1])) != parts[2]


@functools.cache
def _machine() -> str:
    """The boot id of this machine and its process id namespace."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink(_PROC / 'self/ns/pid')}"
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Start time of a process in ticks; "" if there is none."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return ""
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else fields[18]


# Find objects below a cell's folder that no admin server wrote.
#
# They harm nothing while an admin server runs, and keep the next one from starting (see envelope).

_NUMBERED = re.compile(r"(records|snapshots|archive|mark)/\d{12}|(beats|roster)/\d{12}/\d{12}")
_PROBE = re.compile(r"probes/[0-9a-f]{32}")


async def find_foreign(store: ObjectStore, cell: CellId) -> tuple[str, ...]:
    """The names of foreign objects of a cell. Raises StoreUnavailable."""
    folder = str(cell).strip("/")
    return foreign_names(folder, await store.names(folder))


def foreign_names(folder: str, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in names if not _is_ours(name.removeprefix(f"{folder}/")))


def _is_ours(name: str) -> bool:
    return name == LOCATION or bool(_NUMBERED.fullmatch(name) or _PROBE.fullmatch(name))


_FAREWELL_S = 2.0  # for the last beat of a leader that stops

# Raises StoreUnavailable, and errors that waiting does not fix.
OpenLedger = Callable[[], Awaitable[Ledger]]
# Start to lead: the restored ledger, the term, and the servers known to the previous leader; None
# if it left no list.
StartCell = Callable[[Ledger, int, Sequence[ServerInfo] | None], AbstractAsyncContextManager[Cell]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadTiming:
    """Intervals of leader election, in seconds."""

    beat_s: float = 1.0  # between two beats of the leader
    patience_s: float = 3.0  # silence after which the leader counts as gone
    foreign_s: float = 30.0  # between two looks of the leader for foreign objects

    @property
    def look_s(self) -> float:
        """Time between two looks of a follower."""
        return self.beat_s / 2


class Leadership:
    """Runs one admin server as follower or leader of its cell."""

    def __init__(
        self,
        role: AdminRole,
        store: ObjectStore,
        address: str,
        clock: Callable[[], float],
        open_ledger: OpenLedger,
        start_cell: StartCell,
        *,
        timing: LeadTiming,
    ) -> None:
        self.admin = uuid.uuid4().hex
        self._mark = own_mark()
        self._role = role
        self._store = store
        self._address = address
        self._clock = clock
        self._start_cell = start_cell
        self._open_ledger = open_ledger
        self._timing = timing
        self._lease = Lease(timing.patience_s)
        self._beats = Series(store, role.cell_id, "beats")
        self._memberships = Series(store, role.cell_id, "roster")
        self._kept: Sequence[ServerInfo] | None = None  # the servers that it names

    async def run(self) -> None:
        """Follow and lead until cancelled. Raises CorruptLog, and whatever ends a led cell."""
        while True:
            try:
                ledger = await self._follow_until_vacant()
                await self._read_membership(ledger)  # it may name a record that is missing
                term = await ledger.take_lead(self.admin, self._address, self._clock())
                servers = await self._read_membership(ledger)
            except NotLeading as exc:  # another server was faster
                self._role.wait(exc.text)
                continue
            except (StoreUnavailable, AdminUnavailable) as exc:
                # A record of ours that landed after all is followed like anyone else's.
                self._role.health.failed_by(exc)
                self._role.wait(exc.text)
                await asyncio.sleep(self._timing.look_s)
                continue
            _log.warning("this admin server leads %s from record %d", self._role.cell_id, term)
            await self._lead(ledger, term, servers)

    # Following

    async def _follow_until_vacant(self) -> Ledger:
        ledger = await self._open_ledger()
        while True:
            vacant = await self._look(ledger)
            if vacant:
                # Another server may have just taken the lead and not have beaten yet.
                await ledger.follow()
                if await self._look(ledger):
                    return ledger
            self._role.health.succeeded()
            self._role.follow(self._lease.leader)
            await asyncio.sleep(self._timing.look_s)

    async def _look(self, ledger: Ledger) -> bool:
        """Read the leader's last beat and follow the log; True if nobody leads."""
        newest = await self._beats.newest()
        place, beat = (newest[0], _read_beat(newest[1])) if newest else (None, None)
        if beat is not None:
            await _read_up_to(ledger, beat.sequence, "the leader's last beat")
        self._lease = self._lease.look(Life(ledger.state.term, place, beat), self._clock())
        if beat is not None and place is not None and place[0] >= ledger.state.term:
            return self._lease.vacant(self._clock()) or is_gone(beat.process)
        return self._lease.vacant(self._clock())

    # Leading

    async def _lead(self, ledger: Ledger, term: int, servers: Sequence[ServerInfo] | None) -> None:
        async with self._start_cell(ledger, term, servers) as cell:
            self._role.take(cell, term, self._address)
            try:
                await self._beat_until_deposed(ledger, cell, term)
            finally:
                self._role.wait("it has just stepped down")
                await ledger.close()
                if not ledger.deposed.is_set():
                    await self._resign(ledger, cell, term)
        _log.warning("another admin server leads %s now; this one follows", self._role.cell_id)

    async def _beat_until_deposed(self, ledger: Ledger, cell: Cell, term: int) -> None:
        self._kept, look_at_s = None, 0.0
        while not ledger.deposed.is_set():
            try:
                await self._beat(ledger, term)
                await self._keep_membership(ledger, cell, term)
                self._role.health.succeeded()
                if self._clock() >= look_at_s:
                    self._role.health.found(await find_foreign(self._store, self._role.cell_id))
                    look_at_s = self._clock() + self._timing.foreign_s
            except StoreUnavailable as exc:
                self._role.health.failed_by(exc)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._timing.beat_s):
                    await ledger.deposed.wait()

    async def _beat(self, ledger: Ledger, term: int) -> None:
        """Check for a newer leader and write a beat. Raises StoreUnavailable."""
        # In this order: a beat in another store would keep a leader there from its cell.
        await ledger.check()
        if await self._beats.write(term, self._word(ledger)) > term:
            ledger.deposed.set()

    async def _keep_membership(self, ledger: Ledger, cell: Cell, term: int) -> None:
        """Write the list of servers if it has changed. Raises StoreUnavailable."""
        if cell.knows_servers and (infos := cell.infos()) != self._kept:
            await self._memberships.write(term, encode_membership(infos, ledger.sequence))
            self._kept = infos

    async def _resign(self, ledger: Ledger, cell: Cell, term: int) -> None:
        """Let the next server lead at once instead of waiting out the silence.

        Of a cell that stops as a whole the servers have just left, and the next leader must not
        wait for them.
        """
        with contextlib.suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(_FAREWELL_S):
                await self._keep_membership(ledger, cell, term)
                await self._beats.write(term, self._word(ledger, resigned=True))

    def _word(self, ledger: Ledger, *, resigned: bool = False) -> bytes:
        beat = LeaderBeat(self.admin, self._address, ledger.sequence, self._mark, resigned)
        return msgspec.json.encode(beat)

    async def _read_membership(self, ledger: Ledger) -> Sequence[ServerInfo] | None:
        """Return the servers of the previous leader; None: there is no list, or an invalid one.

        Raises CorruptLog if the log lacks the record that the list names.
        """
        newest = await self._memberships.newest()
        if newest is None:
            return None
        try:
            infos, sequence = decode_membership(newest[1])
        except msgspec.DecodeError as exc:
            _log.error(
                "the stored list of model servers of %s is invalid (%s)", self._role.cell_id, exc
            )
            return None
        await _read_up_to(ledger, sequence, "the stored list of model servers")
        return infos


async def _read_up_to(ledger: Ledger, sequence: int, source: str) -> None:
    """Follow the log up to a record that was durable. Raises CorruptLog if it is gone."""
    if sequence > ledger.sequence:
        await ledger.follow()
    if sequence > ledger.sequence:
        folder = str(ledger.state.cell).strip("/")
        first, last = f"{folder}/records/{ledger.sequence + 1:012d}", f"{sequence:012d}"
        raise CorruptLog(
            f"the records of {ledger.state.cell} end at {ledger.sequence}, but {source} names "
            f"record {sequence}: {first} to {last} are missing, and with them changes that were "
            f"acknowledged. Restore them from a backup; to go on without them, delete "
            f"{folder}/beats and {folder}/roster and start again"
        )


def _read_beat(text: bytes) -> LeaderBeat | None:
    try:
        return msgspec.json.decode(text, type=LeaderBeat)
    except msgspec.DecodeError as exc:
        _log.error("the leader's last beat is invalid (%s)", exc)
        return None
