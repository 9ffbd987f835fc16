"""RecordLog: the log of a cell, of create-only records, and snapshots that shorten it.

    sax/<cell>/records/000000000042      one record, never changed
    sax/<cell>/archive/000000000040      records up to 40 since the previous archive, for auditors
    sax/<cell>/snapshots/000000000040    the state after record 40; older records are then deleted

Create-if-absent is the fence. A writer that finds the next number taken by another has been deposed
and must stop. Because a writer that slept through a compaction may find its next number free again,
a record only counts once no snapshot is at or beyond it. Every object carries its number and a
checksum, and an object that is torn, foreign or missing is reported by name, never skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass

import msgspec

from admin_server.storage.envelope import (
    CorruptLog,
    folder_of,
    known_numbers,
    name_of,
    numbers_of,
    unwrap,
    wrap,
)
from admin_server.storage.store_mark import StoreMark
from sax.errors import Unavailable
from sax.names import CellId
from sax.storage.object_store import ObjectExists, ObjectMissing, ObjectStore, StoreReplaced

_READS_AT_ONCE = 16
_READ_TRIES = 5
_log = logging.getLogger(__name__)


async def _read_object(store: ObjectStore, cell: CellId, kind: str, number: int) -> bytes:
    """The text of one object. Raises ObjectMissing, CorruptLog, StoreUnavailable."""
    return unwrap(cell, kind, number, await store.get(name_of(cell, kind, number)))[1]


async def _read_records(store: ObjectStore, cell: CellId, numbers: Sequence[int]) -> list[bytes]:
    """The texts of these records, in order. Raises as `_read_object` does."""
    slots = asyncio.Semaphore(_READS_AT_ONCE)

    async def read(number: int) -> bytes:
        async with slots:
            return await _read_object(store, cell, "records", number)

    return await asyncio.gather(*map(read, numbers))


def _check_gapless(cell: CellId, last: int, numbers: Sequence[int]) -> None:
    """Raises CorruptLog unless the numbers follow on `last` without a gap."""
    for expected, number in enumerate(numbers, start=last + 1):
        if number != expected:
            raise CorruptLog(
                f"{name_of(cell, 'records', expected)} is missing (the next existing one is "
                f"{name_of(cell, 'records', number)}): restore it from a backup"
            )


async def _all_hold(*checks: Awaitable[None]) -> None:
    """Await checks at once; raise the first failure in the order of the arguments."""
    for failure in await asyncio.gather(*checks, return_exceptions=True):
        if failure is not None:
            raise failure


class Deposed(Unavailable):
    """Another admin server writes this cell's log now; this one must step down."""

    def __init__(self, text: str, *, unsure: bool = False) -> None:
        super().__init__(text)
        self.unsure = unsure  # the record may have counted before the takeover


class LateRecord(Exception):
    """A record whose write seemed to fail had landed: apply it, then continue."""

    def __init__(self, sequence: int, text: bytes) -> None:
        super().__init__(sequence)
        self.sequence = sequence
        self.text = text


@dataclass(frozen=True, slots=True)
class LogContents:
    snapshot: bytes | None
    records: tuple[tuple[int, bytes], ...]  # those after the snapshot, in order


class RecordLog:
    """The log of one cell, for one process. One append at a time.

    A process that never appends may keep reading (`catch_up`): that is a follower.
    """

    def __init__(self, store: ObjectStore, cell: CellId, mark: StoreMark | None = None) -> None:
        """With a mark, nothing is written into any other store."""
        self._store = store
        self._cell = cell
        self._mark = mark
        self._writer = uuid.uuid4().hex
        self.sequence = 0  # of the last record
        self.snapshot_sequence = 0
        self._unarchived: dict[int, bytes] = {}

    @classmethod
    async def open(
        cls, store: ObjectStore, cell: CellId, mark: StoreMark | None = None
    ) -> tuple[RecordLog, LogContents]:
        """Read the whole log. Raises CorruptLog, StoreUnavailable."""
        log = cls(store, cell, mark)
        return log, await log.catch_up()

    async def catch_up(self) -> LogContents:
        """Read what was written since the last call. Raises CorruptLog, StoreUnavailable.

        If the log was compacted beyond what this process has, the result has a snapshot that
        replaces everything read before.
        """
        for attempt in range(_READ_TRIES):
            try:
                return await self._read()
            except ObjectMissing as exc:
                # Another admin is compacting the log: objects we listed are gone.
                _log.info("the log changed while it was read (try %d): %s", attempt + 1, exc)
        raise CorruptLog(
            f"the log of {self._cell} loses objects faster than they can be read: "
            "find out what else writes there"
        )

    async def _read(self) -> LogContents:
        store, cell = self._store, self._cell
        records = numbers_of(await store.names(folder_of(cell, "records")))
        # In this order: if records were compacted before we listed them, their snapshot shows up.
        snapshots = numbers_of(await store.names(folder_of(cell, "snapshots")))
        last = max(snapshots, default=0)
        known = max(self.sequence, last)
        wanted = [number for number in records if number > known]
        _check_gapless(cell, known, wanted)
        snapshot = (
            await _read_object(store, cell, "snapshots", last) if last > self.sequence else None
        )
        texts = await _read_records(store, cell, wanted)
        self.sequence, self.snapshot_sequence = known + len(wanted), last
        news = tuple(zip(wanted, texts, strict=True))
        kept = {} if snapshot is not None else self._unarchived
        # Records that a snapshot covers were archived before it was written.
        self._unarchived = {n: text for n, text in kept.items() if n > last} | dict(news)
        return LogContents(snapshot, news)

    async def append(self, text: bytes) -> int:
        """Write the next record; durable on return. Returns its number.

        Raises StoreUnavailable (it may have landed anyway: see LateRecord), its subclass
        StoreReplaced, Deposed, or LateRecord for an earlier record, after which the append must be
        retried.
        """
        await self._check_store()
        number = self.sequence + 1
        data = wrap(self._cell, "records", number, self._writer, text)
        try:
            await self._store.create(name_of(self._cell, "records", number), data)
            found = data
        except ObjectExists:
            found = await self._find_own(number)
        # Only a record that is read again, in the store that holds all others, counts.
        await _all_hold(
            self._check_not_deposed(number), self._check_mark(), self._check_kept(number, found)
        )
        self.sequence = number
        self._unarchived[number] = unwrap(self._cell, "records", number, found)[1]
        # A backend that retries may find its own first try: then both are equal.
        if found != data:
            raise LateRecord(number, unwrap(self._cell, "records", number, found)[1])
        return number

    async def check(self) -> None:
        """Check whether anyone has written after us, and that the store still has our records.

        Raises StoreUnavailable, StoreReplaced, Deposed, or LateRecord for one of our own records
        that had landed.
        """
        await self._check_store()
        number = self.sequence + 1
        try:
            await self._store.get(name_of(self._cell, "records", number))
        except ObjectMissing:
            # Not written yet, or written and compacted away while we slept.
            return await self._check_not_deposed(number)
        found = await self._find_own(number)
        await self._check_not_deposed(number)
        text = unwrap(self._cell, "records", number, found)[1]
        self.sequence, self._unarchived[number] = number, text
        raise LateRecord(number, text)

    async def _find_own(self, number: int) -> bytes:
        """The object that took the number, if we wrote it. Raises Deposed otherwise."""
        name = name_of(self._cell, "records", number)
        try:
            found = await self._store.get(name)
            writer, _ = unwrap(self._cell, "records", number, found)
        except ObjectMissing:
            writer, found = "", b""
        if writer != self._writer:
            # Our own first try may have counted and been compacted away since.
            await self._check_not_deposed(number)
            raise Deposed(_deposed(self._cell, name))
        return found

    async def _check_store(self) -> None:
        """Raises StoreReplaced if the store is another one or lacks the last record."""
        await _all_hold(self._check_mark(), self._check_last())

    async def _check_mark(self) -> None:
        if self._mark is not None:
            await self._mark.check()

    async def _check_last(self) -> None:
        number = self.sequence
        if not number:
            return
        try:
            found = await _read_object(self._store, self._cell, "records", number)
        except ObjectMissing:
            if await self._newest_snapshot() < number:
                raise self._lost("records", number, "is gone") from None
        except CorruptLog as exc:
            raise self._lost("records", number, f"cannot be read ({exc.text})") from exc
        else:
            if found != self._unarchived.get(number, found):
                raise self._lost("records", number, "is not the one that was there")

    async def _check_kept(self, number: int, data: bytes) -> None:
        """Raises StoreReplaced if the record just written is not there."""
        try:
            kept = await self._store.get(name_of(self._cell, "records", number))
        except ObjectMissing:
            kept = b""
        if kept != data:
            raise self._lost("records", number, "is gone right after it was written")

    def _lost(self, kind: str, number: int, why: str) -> StoreReplaced:
        return StoreReplaced(
            f"{name_of(self._cell, kind, number)} {why}: the store of --fs_root lost what this "
            "admin server keeps there, so no change is acknowledged. Restore it from a backup, and "
            "this server goes on by itself"
        )

    async def _newest_snapshot(self) -> int:
        names = await self._store.names(folder_of(self._cell, "snapshots"))
        return max(known_numbers(names), default=0)

    async def _check_not_deposed(self, number: int) -> None:
        newest = await self._newest_snapshot()
        if newest >= number:
            name = name_of(self._cell, "snapshots", newest)
            raise Deposed(_deposed(self._cell, name), unsure=True)

    async def compact(self, sequence: int, text: bytes) -> None:
        """Archive the records up to `sequence`, write the state after it, delete what it replaces.

        May run beside appends. Raises StoreUnavailable (nothing is lost, try again after the next
        record) or Deposed.
        """
        await self._archive(sequence)
        data = wrap(self._cell, "snapshots", sequence, self._writer, text)
        name = name_of(self._cell, "snapshots", sequence)
        with contextlib.suppress(ObjectExists):
            await self._store.create(name, data)
        # What it replaces is deleted next, so it must be there, whatever happened to the store.
        try:
            found = await self._store.get(name)
        except ObjectMissing:
            raise self._lost("snapshots", sequence, "is gone right after it was written") from None
        if found != data:
            raise Deposed(_deposed(self._cell, name))
        self.snapshot_sequence = sequence
        # Only now: from here on readers of the log start at this snapshot.
        await self._delete_older("records", sequence + 1)
        await self._delete_older("snapshots", sequence)

    async def _archive(self, sequence: int) -> None:
        """Store the records about to be deleted in one object, for auditors."""
        pages = sorted((n, text) for n, text in self._unarchived.items() if n <= sequence)
        if not pages:
            return
        text = b"[" + b",".join(b"[%d,%b]" % page for page in pages) + b"]"
        data = wrap(self._cell, "archive", sequence, self._writer, text)
        # It may exist: our own first try, or a previous leader archived the same records.
        with contextlib.suppress(ObjectExists):
            await self._store.create(name_of(self._cell, "archive", sequence), data)
        try:
            await self.archived(sequence)
        except ObjectMissing:
            raise self._lost("archive", sequence, "is gone right after it was written") from None
        for number, _ in pages:
            self._unarchived.pop(number, None)

    @property
    def unarchived(self) -> list[tuple[int, bytes]]:
        return sorted(self._unarchived.items())

    async def archives(self) -> list[int]:
        """The last record number of each archive, in order."""
        return known_numbers(await self._store.names(folder_of(self._cell, "archive")))

    async def archived(self, last: int) -> list[tuple[int, bytes]]:
        """The records of one archive, in order. Raises CorruptLog, ObjectMissing."""
        text = await _read_object(self._store, self._cell, "archive", last)
        pages = msgspec.json.decode(text, type=list[tuple[int, msgspec.Raw]])
        return [(number, bytes(record)) for number, record in pages]

    async def _delete_older(self, kind: str, first_kept: int) -> None:
        numbers = known_numbers(await self._store.names(folder_of(self._cell, kind)))
        old = [number for number in numbers if number < first_kept]
        await self._store.delete([name_of(self._cell, kind, number) for number in old])


def _deposed(cell: CellId, name: str) -> str:
    return f"another admin server leads {cell} now: it wrote {name}; this one steps down"
