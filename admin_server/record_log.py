"""The log of a cell: create-only numbered records, and snapshots that shorten it.

    sax/<cell>/records/000000000042      one record, never changed
    sax/<cell>/snapshots/000000000040    the state after record 40; older records are then deleted

Create-if-absent is the fence. Who finds the next number taken by another writer has been deposed
and must stop. As a writer that slept through a compaction may find its next number free again,
every record counts only once no snapshot is at or beyond it. Every object carries its number and
a checksum, and an object that is torn, foreign or missing is reported by name, never skipped.
Knows nothing of what is in a record or a snapshot: they are JSON texts.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from admin_server.object_store import ObjectExists, ObjectMissing, ObjectStore
from sax.errors import SaxError, Unavailable
from sax.names import CellId

_log = logging.getLogger(__name__)
_FORMAT = 1
_NUMBER = re.compile(r"\d{12}")
_READS_AT_ONCE = 16
_READ_TRIES = 5


class CorruptLog(SaxError):
    """An object of the log is torn, foreign or missing; the text names it."""


class Deposed(Unavailable):
    """Another admin server writes this cell's log now: this one must step down."""


class LateRecord(Exception):
    """A record whose write seemed to fail had landed: apply it, then go on."""

    def __init__(self, sequence: int, text: bytes) -> None:
        super().__init__(sequence)
        self.sequence = sequence
        self.text = text


class Envelope(msgspec.Struct, frozen=True):
    """What an object of the log holds."""

    format: int
    cell: str
    kind: str
    sequence: int
    writer: str
    checksum: str
    text: msgspec.Raw


@dataclass(frozen=True, slots=True)
class History:
    """What was in the log when it was opened."""

    snapshot: bytes | None
    records: tuple[tuple[int, bytes], ...]  # all after the snapshot, in order


class RecordLog:
    """One writer's hold on the log of one cell. One append at a time."""

    def __init__(self, store: ObjectStore, cell: CellId, sequence: int, snapshot: int) -> None:
        self._store = store
        self._cell = cell
        self._writer = uuid.uuid4().hex
        self.sequence = sequence  # of the last record
        self.snapshot_sequence = snapshot

    @classmethod
    async def open(cls, store: ObjectStore, cell: CellId) -> tuple[RecordLog, History]:
        """Read the whole log. Raises CorruptLog, StoreUnavailable."""
        for attempt in range(_READ_TRIES):
            try:
                return await cls._read(store, cell)
            except ObjectMissing as exc:
                # Another admin compacts the log under our eyes: what we listed is gone.
                _log.info("the log changed while it was read (try %d): %s", attempt + 1, exc)
        raise CorruptLog(
            f"the log of {cell} loses objects faster than they can be read: "
            "find out who else writes there"
        )

    @classmethod
    async def _read(cls, store: ObjectStore, cell: CellId) -> tuple[RecordLog, History]:
        records = _numbers(await store.names(_folder(cell, "records")))
        # In this order: a snapshot of records that we did not list any more is listed for sure.
        snapshots = _numbers(await store.names(_folder(cell, "snapshots")))
        last = max(snapshots, default=0)
        wanted = [number for number in records if number > last]
        _check_gapless(cell, last, wanted)
        snapshot = await _get(store, cell, "snapshots", last) if last else None
        texts = await _get_all(store, cell, wanted)
        log = cls(store, cell, last + len(wanted), last)
        return log, History(snapshot, tuple(zip(wanted, texts, strict=True)))

    async def append(self, text: bytes) -> int:
        """Write the next record; durable on return, which gives its number.

        Raises StoreUnavailable (it may have landed all the same: see LateRecord), Deposed, or
        LateRecord for an earlier record, after which the append must be tried anew.
        """
        number = self.sequence + 1
        data = _wrap(self._cell, "records", number, self._writer, text)
        try:
            await self._store.create(_name(self._cell, "records", number), data)
            found = data
        except ObjectExists:
            found = await self._find_own(number)
        await self._check_not_deposed(number)
        self.sequence = number
        # A backend that retries by itself may meet its own first try: then both are the same.
        if found != data:
            raise LateRecord(number, _unwrap(self._cell, "records", number, found)[1])
        return number

    async def _find_own(self, number: int) -> bytes:
        """What took the number, if we wrote it ourselves. Raises Deposed if we did not."""
        name = _name(self._cell, "records", number)
        try:
            found = await self._store.get(name)
            writer, _ = _unwrap(self._cell, "records", number, found)
        except ObjectMissing:
            writer, found = "", b""
        if writer != self._writer:
            raise Deposed(_deposed(self._cell, name))
        return found

    async def _check_not_deposed(self, number: int) -> None:
        snapshots = _numbers(await self._store.names(_folder(self._cell, "snapshots")))
        if max(snapshots, default=0) >= number:
            raise Deposed(_deposed(self._cell, _name(self._cell, "snapshots", max(snapshots))))

    async def compact(self, sequence: int, text: bytes) -> None:
        """Write the state after record `sequence`, then delete what it makes needless.

        May run beside appends. Raises StoreUnavailable (nothing is lost, try again after the
        next record) or Deposed.
        """
        data = _wrap(self._cell, "snapshots", sequence, self._writer, text)
        name = _name(self._cell, "snapshots", sequence)
        try:
            await self._store.create(name, data)
        except ObjectExists:
            if await self._store.get(name) != data:
                raise Deposed(_deposed(self._cell, name)) from None
        self.snapshot_sequence = sequence
        # Only now: whoever reads the log from here on starts at this snapshot.
        await self._delete_older("records", sequence + 1)
        await self._delete_older("snapshots", sequence)

    async def _delete_older(self, kind: str, first_kept: int) -> None:
        numbers = _numbers(await self._store.names(_folder(self._cell, kind)))
        old = [number for number in numbers if number < first_kept]
        await self._store.delete([_name(self._cell, kind, number) for number in old])


def _folder(cell: CellId, kind: str) -> str:
    return f"{str(cell).strip('/')}/{kind}"


def _name(cell: CellId, kind: str, number: int) -> str:
    return f"{_folder(cell, kind)}/{number:012d}"


def _numbers(names: Sequence[str]) -> list[int]:
    """The numbers of listed names. Raises CorruptLog for a name that is no number."""
    numbers: list[int] = []
    for name in names:
        tail = name.rpartition("/")[2]
        if not _NUMBER.fullmatch(tail):
            raise CorruptLog(f"{name} is foreign to the log: move it elsewhere, then start again")
        numbers.append(int(tail))
    return sorted(numbers)


def _check_gapless(cell: CellId, last: int, numbers: Sequence[int]) -> None:
    for expected, number in enumerate(numbers, start=last + 1):
        if number != expected:
            raise CorruptLog(
                f"{_name(cell, 'records', expected)} is missing (the next one there is "
                f"{_name(cell, 'records', number)}): bring it back from a backup"
            )


def _wrap(cell: CellId, kind: str, number: int, writer: str, text: bytes) -> bytes:
    checksum = _checksum(cell, kind, number, writer, text)
    body = Envelope(_FORMAT, str(cell), kind, number, writer, checksum, msgspec.Raw(text))
    return msgspec.json.encode(body)


def _checksum(cell: CellId, kind: str, number: int, writer: str, text: bytes) -> str:
    head = f"{_FORMAT} {cell} {kind} {number} {writer} ".encode()
    return hashlib.sha256(head + text).hexdigest()


def _unwrap(cell: CellId, kind: str, number: int, data: bytes) -> tuple[str, bytes]:
    """Writer and text of an object, proven to be the one of this name. Raises CorruptLog."""
    name = _name(cell, kind, number)
    try:
        body = msgspec.json.decode(data, type=Envelope)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise CorruptLog(
            f"{name} is torn or is no record of ours ({len(data)} bytes; {exc}): "
            "bring it back from a backup"
        ) from exc
    if body.format != _FORMAT:
        raise CorruptLog(f"{name} is in format {body.format}: a newer sax wrote it, start that one")
    if (body.cell, body.kind, body.sequence) != (str(cell), kind, number):
        raise CorruptLog(
            f"{name} is foreign: it says it is number {body.sequence} of the {body.kind} of "
            f"{body.cell}; bring the right one back from a backup"
        )
    text = bytes(body.text)
    if body.checksum != _checksum(cell, kind, number, body.writer, text):
        raise CorruptLog(f"{name} does not match its checksum: bring it back from a backup")
    return body.writer, text


def _deposed(cell: CellId, name: str) -> str:
    return f"another admin server leads {cell} now: it wrote {name}; this one steps down"


async def _get(store: ObjectStore, cell: CellId, kind: str, number: int) -> bytes:
    return _unwrap(cell, kind, number, await store.get(_name(cell, kind, number)))[1]


async def _get_all(store: ObjectStore, cell: CellId, numbers: Sequence[int]) -> list[bytes]:
    room = asyncio.Semaphore(_READS_AT_ONCE)

    async def get(number: int) -> bytes:
        async with room:
            return await _get(store, cell, "records", number)

    return await asyncio.gather(*map(get, numbers))
