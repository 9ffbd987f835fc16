"""The log of a cell: create-only numbered records, and snapshots that shorten it.

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
import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from admin_server.storage.envelope import CorruptLog, folder_of, name_of, numbers_of, unwrap, wrap
from admin_server.storage.object_store import ObjectExists, ObjectMissing, ObjectStore
from sax.errors import Unavailable
from sax.names import CellId

_log = logging.getLogger(__name__)
_READS_AT_ONCE = 16
_READ_TRIES = 5


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

    def __init__(self, store: ObjectStore, cell: CellId) -> None:
        self._store = store
        self._cell = cell
        self._writer = uuid.uuid4().hex
        self.sequence = 0  # of the last record
        self.snapshot_sequence = 0
        self._unarchived: dict[int, bytes] = {}

    @classmethod
    async def open(cls, store: ObjectStore, cell: CellId) -> tuple[RecordLog, LogContents]:
        """Read the whole log. Raises CorruptLog, StoreUnavailable."""
        log = cls(store, cell)
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
        snapshot = await _get(store, cell, "snapshots", last) if last > self.sequence else None
        texts = await _get_all(store, cell, wanted)
        self.sequence, self.snapshot_sequence = known + len(wanted), last
        news = tuple(zip(wanted, texts, strict=True))
        kept = {} if snapshot is not None else self._unarchived
        # Records that a snapshot covers were archived before it was written.
        self._unarchived = {n: text for n, text in kept.items() if n > last} | dict(news)
        return LogContents(snapshot, news)

    async def append(self, text: bytes) -> int:
        """Write the next record; durable on return. Returns its number.

        Raises StoreUnavailable (it may have landed anyway: see LateRecord), Deposed, or LateRecord
        for an earlier record, after which the append must be retried.
        """
        number = self.sequence + 1
        data = wrap(self._cell, "records", number, self._writer, text)
        try:
            await self._store.create(name_of(self._cell, "records", number), data)
            found = data
        except ObjectExists:
            found = await self._find_own(number)
        await self._check_not_deposed(number)
        self.sequence = number
        self._unarchived[number] = unwrap(self._cell, "records", number, found)[1]
        # A backend that retries may find its own first try: then both are equal.
        if found != data:
            raise LateRecord(number, unwrap(self._cell, "records", number, found)[1])
        return number

    async def check(self) -> None:
        """Check whether anyone has written after us.

        Raises StoreUnavailable, Deposed, or LateRecord for one of our own records that had landed.
        """
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

    async def _check_not_deposed(self, number: int) -> None:
        snapshots = numbers_of(await self._store.names(folder_of(self._cell, "snapshots")))
        if max(snapshots, default=0) >= number:
            newest = name_of(self._cell, "snapshots", max(snapshots))
            raise Deposed(_deposed(self._cell, newest), unsure=True)

    async def compact(self, sequence: int, text: bytes) -> None:
        """Archive the records up to `sequence`, write the state after it, delete what it replaces.

        May run beside appends. Raises StoreUnavailable (nothing is lost, try again after the next
        record) or Deposed.
        """
        await self._archive(sequence)
        data = wrap(self._cell, "snapshots", sequence, self._writer, text)
        name = name_of(self._cell, "snapshots", sequence)
        try:
            await self._store.create(name, data)
        except ObjectExists:
            if await self._store.get(name) != data:
                raise Deposed(_deposed(self._cell, name)) from None
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
        try:
            await self._store.create(name_of(self._cell, "archive", sequence), data)
        except ObjectExists:
            # Our own first try, or a previous leader archived the same records.
            await self.archived(sequence)
        for number, _ in pages:
            self._unarchived.pop(number, None)

    @property
    def unarchived(self) -> list[tuple[int, bytes]]:
        return sorted(self._unarchived.items())

    async def archives(self) -> list[int]:
        """The last record number of each archive, in order."""
        return numbers_of(await self._store.names(folder_of(self._cell, "archive")))

    async def archived(self, last: int) -> list[tuple[int, bytes]]:
        """The records of one archive, in order. Raises CorruptLog, ObjectMissing."""
        text = await _get(self._store, self._cell, "archive", last)
        pages = msgspec.json.decode(text, type=list[tuple[int, msgspec.Raw]])
        return [(number, bytes(record)) for number, record in pages]

    async def _delete_older(self, kind: str, first_kept: int) -> None:
        numbers = numbers_of(await self._store.names(folder_of(self._cell, kind)))
        old = [number for number in numbers if number < first_kept]
        await self._store.delete([name_of(self._cell, kind, number) for number in old])


def _check_gapless(cell: CellId, last: int, numbers: Sequence[int]) -> None:
    for expected, number in enumerate(numbers, start=last + 1):
        if number != expected:
            raise CorruptLog(
                f"{name_of(cell, 'records', expected)} is missing (the next existing one is "
                f"{name_of(cell, 'records', number)}): restore it from a backup"
            )


def _deposed(cell: CellId, name: str) -> str:
    return f"another admin server leads {cell} now: it wrote {name}; this one steps down"


async def _get(store: ObjectStore, cell: CellId, kind: str, number: int) -> bytes:
    return unwrap(cell, kind, number, await store.get(name_of(cell, kind, number)))[1]


async def _get_all(store: ObjectStore, cell: CellId, numbers: Sequence[int]) -> list[bytes]:
    slots = asyncio.Semaphore(_READS_AT_ONCE)

    async def get(number: int) -> bytes:
        async with slots:
            return await _get(store, cell, "records", number)

    return await asyncio.gather(*map(get, numbers))
