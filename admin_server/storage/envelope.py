"""Objects of a cell in the store: numbered, named and checksummed, and series of them.

Each object carries its cell, kind, number and writer, and a checksum over all of it and its JSON
text, so that a reader detects one that is torn or foreign.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import re
import uuid
from collections.abc import Sequence

import msgspec

from sax.errors import SaxError
from sax.names import CellId
from sax.storage.object_store import ObjectExists, ObjectMissing, ObjectStore

_FORMAT = 1
_NUMBER = re.compile(r"\d{12}")


class CorruptLog(SaxError):
    """An object of a cell is torn, foreign or missing; the text names it."""


class RecordEnvelope(msgspec.Struct, frozen=True):
    format: int
    cell: str
    kind: str
    sequence: int
    writer: str
    checksum: str
    text: msgspec.Raw


def folder_of(cell: CellId, kind: str) -> str:
    """sax/<cell>/<kind>"""
    return f"{str(cell).strip('/')}/{kind}"


def name_of(cell: CellId, kind: str, number: int) -> str:
    """sax/<cell>/<kind>/000000000042"""
    return f"{folder_of(cell, kind)}/{number:012d}"


def numbers_of(names: Sequence[str]) -> list[int]:
    """The numbers of listed names, sorted. Raises CorruptLog for a name without one."""
    numbers: list[int] = []
    for name in names:
        tail = name.rpartition("/")[2]
        if not _NUMBER.fullmatch(tail):
            raise CorruptLog(f"{name} is foreign to the log: move it elsewhere, then start again")
        numbers.append(int(tail))
    return sorted(numbers)


def known_numbers(names: Sequence[str]) -> list[int]:
    """The numbers of listed names, sorted; foreign names are passed over (see leadership)."""
    tails = (name.rpartition("/")[2] for name in names)
    return sorted(int(tail) for tail in tails if _NUMBER.fullmatch(tail))


def wrap(cell: CellId, kind: str, number: int, writer: str, text: bytes) -> bytes:
    checksum = _checksum(cell, kind, number, writer, text)
    body = RecordEnvelope(_FORMAT, str(cell), kind, number, writer, checksum, msgspec.Raw(text))
    return msgspec.json.encode(body)


def unwrap(cell: CellId, kind: str, number: int, data: bytes) -> tuple[str, bytes]:
    """Writer and text of an object, verified to belong to this name. Raises CorruptLog."""
    name = name_of(cell, kind, number)
    try:
        body = msgspec.json.decode(data, type=RecordEnvelope)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise CorruptLog(
            f"{name} is torn or not a valid record ({len(data)} bytes; {exc}): "
            "restore it from a backup"
        ) from exc
    if body.format != _FORMAT:
        raise CorruptLog(
            f"{name} is in format {body.format}: a newer sax wrote it, run that version"
        )
    if (body.cell, body.kind, body.sequence) != (str(cell), kind, number):
        raise CorruptLog(
            f"{name} is foreign: it claims to be number {body.sequence} of the {body.kind} of "
            f"{body.cell}; restore the right one from a backup"
        )
    text = bytes(body.text)
    if body.checksum != _checksum(cell, kind, number, body.writer, text):
        raise CorruptLog(f"{name} does not match its checksum: restore it from a backup")
    return body.writer, text


def _checksum(cell: CellId, kind: str, number: int, writer: str, text: bytes) -> str:
    head = f"{_FORMAT} {cell} {kind} {number} {writer} ".encode()
    return hashlib.sha256(head + text).hexdigest()


Position = tuple[int, int]  # term, number
_READ_TRIES = 5
_log = logging.getLogger(__name__)


class Series:
    """Objects of one kind, of which only the newest counts, for one process: a leader's beats, or
    its list of servers. Numbered within the term of the leader that writes them; each write deletes
    the older ones.

        sax/<cell>/<kind>/<term>/<number>
    """

    def __init__(self, store: ObjectStore, cell: CellId, kind: str) -> None:
        self._store = store
        self._cell = cell
        self._kind = kind
        self._writer = uuid.uuid4().hex
        self._number = 0

    async def write(self, term: int, text: bytes) -> int:
        """Write the newest and delete the older ones. Returns the highest term that ever wrote.

        Raises StoreUnavailable.
        """
        self._number += 1  # even after a failure: the write may have landed
        kind = self._kind_of(term)
        data = wrap(self._cell, kind, self._number, self._writer, text)
        # A backend that retries may find its own first try.
        with contextlib.suppress(ObjectExists):
            await self._store.create(name_of(self._cell, kind, self._number), data)
        places = await self._places()
        older = [place for place in places if place < (term, self._number)]
        await self._store.delete([self._name(place) for place in older])
        return max(places, default=(term, 0))[0]  # none: someone is emptying the bucket

    async def newest(self) -> tuple[Position, bytes] | None:
        """The newest intact object and its position. Raises StoreUnavailable."""
        for _ in range(_READ_TRIES):
            places = await self._places()
            try:
                return await self._newest_of(places)
            except ObjectMissing:  # replaced by a newer one meanwhile
                await asyncio.sleep(0)
        return None

    async def _newest_of(self, places: list[Position]) -> tuple[Position, bytes] | None:
        for place in reversed(places):
            data = await self._store.get(self._name(place))
            try:
                return place, unwrap(self._cell, self._kind_of(place[0]), place[1], data)[1]
            except CorruptLog as exc:
                _log.error("%s; going by the one before", exc.text)
        return None

    async def _places(self) -> list[Position]:
        names = await self._store.names(folder_of(self._cell, self._kind))
        places = [_place(name) for name in names]
        for name, place in zip(names, places, strict=True):
            if place is None:
                _log.error("%s is foreign: move it elsewhere", name)
        return sorted(place for place in places if place is not None)

    def _kind_of(self, term: int) -> str:
        return f"{self._kind}/{term:012d}"

    def _name(self, place: Position) -> str:
        return name_of(self._cell, self._kind_of(place[0]), place[1])


def _place(name: str) -> Position | None:
    *_, term, number = ["", "", *name.split("/")]
    return (int(term), int(number)) if term.isdigit() and number.isdigit() else None
