"""Series: numbered objects of a cell of which only the newest counts.

A series holds a leader's beats or its list of servers, numbered within the term of the leader that
writes them; each write deletes the older ones.

    sax/<cell>/<kind>/<term>/<number>
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid

from admin_server.storage.envelope import CorruptLog, folder_of, name_of, unwrap, wrap
from sax.names import CellId
from sax.storage.object_store import ObjectExists, ObjectMissing, ObjectStore

Position = tuple[int, int]  # term, number
_READ_TRIES = 5
_log = logging.getLogger(__name__)


class Series:
    """One kind of object of one cell, for one process."""

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
