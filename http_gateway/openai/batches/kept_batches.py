"""KeptBatches: batches on the object store, read and written object by object."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import msgspec

from http_gateway.openai.batches.records import (
    BatchBeat,
    BatchChecked,
    BatchDone,
    BatchOrder,
    BatchView,
    LogEntry,
)
from http_gateway.openai.stored import made_at, needed, new_id
from sax.errors import NotFound
from sax.storage.object_store import ObjectExists, ObjectMissing, ObjectStore

FOLDER = "batches"
OPEN = "open_batches"  # one mark for each batch that has not ended
PREFIX = "batch_"
KEPT_S = 30 * 86400.0  # from its end, or rather from its creation and its longest window
_READS_AT_ONCE = 4  # of entries of a few megabytes at most

Record = TypeVar("Record")
Place = tuple[str, str]  # owner and id


class LogMoved(Exception):
    """Another gateway wrote the log's next entry."""


class KeptBatches:
    """All batches. Methods raise StoreUnavailable, and InvalidRequest without a store."""

    def __init__(self, store: ObjectStore | None, clock: Callable[[], float] = time.time) -> None:
        self._maybe_store = store
        self.clock = clock

    @property
    def on(self) -> bool:
        return self._maybe_store is not None

    @property
    def _store(self) -> ObjectStore:
        return needed(self._maybe_store, "batches")

    def new_id(self) -> str:
        return new_id(PREFIX, self.clock())

    # --- for clients ---

    async def create(self, order: BatchOrder) -> None:
        """Durable on return: the batch will be run."""
        await self._write((order.owner, order.id), "order", order)
        await self._store.create(f"{OPEN}/{order.owner}/{order.id}", b"")

    async def ids(self, owner: str) -> list[str]:
        """Return the ids of an owner's batches, the oldest first."""
        names = await self._store.names(f"{FOLDER}/{owner}")
        return [name.split("/")[2] for name in names if name.endswith("/order")]

    async def view(self, owner: str, id: str) -> BatchView:
        """Raises NotFound, also for another owner's."""
        place = (owner, id)
        store = self._store
        if made_at(id, PREFIX) is None:
            raise _missing(id)
        order = await self._read(place, "order", BatchOrder)
        if order is None:
            raise _missing(id)
        done = await self._read(place, "done", BatchDone)
        names = [] if done else await store.names(_name(place, ""))
        beats = [name for name in names if "/beats/" in name]
        beat = await self._read(place, _tail(beats[-1]), BatchBeat) if beats else None
        ending = await self._ending(place, names)
        return BatchView(
            order=order,
            checked=await self._read(place, "checked", BatchChecked),
            cancelling_at=await self._read(place, "cancelling", int),
            beat=beat,
            done=done,
            finalizing_at=ending.at if ending else None,
        )

    async def cancel(self, place: Place) -> None:
        """Ask whoever runs the batch to end it."""
        with contextlib.suppress(ObjectExists):
            await self._write(place, "cancelling", int(self.clock()))

    # --- for whoever runs it ---

    async def open(self) -> list[Place]:
        """Return the batches that have not ended, the oldest first."""
        names = await self._store.names(OPEN)
        places = [(name.split("/")[1], name.split("/")[2]) for name in names]
        return sorted(places, key=lambda place: place[1])

    async def order(self, place: Place) -> BatchOrder | None:
        return await self._read(place, "order", BatchOrder)

    async def checked(self, place: Place) -> BatchChecked | None:
        return await self._read(place, "checked", BatchChecked)

    async def check_in(self, place: Place, checked: BatchChecked) -> BatchChecked:
        """Note that the input is in order, unless that is noted already."""
        try:
            await self._write(place, "checked", checked)
        except ObjectExists:
            return await self._read(place, "checked", BatchChecked) or checked
        return checked

    async def is_cancelling(self, place: Place) -> bool:
        return await self._read(place, "cancelling", int) is not None

    async def is_done(self, place: Place) -> bool:
        return await self._read(place, "done", BatchDone) is not None

    async def finish(self, place: Place, done: BatchDone) -> None:
        """Note the outcome, unless one is noted already."""
        with contextlib.suppress(ObjectExists):
            await self._write(place, "done", done)
        await self.close(place)

    async def close(self, place: Place) -> None:
        await self._store.delete([f"{OPEN}/{place[0]}/{place[1]}"])

    async def newest_claim(self, place: Place) -> tuple[int, BatchBeat | None]:
        """Return the number of the newest claim, 0 if there is none, and its newest beat."""
        names = await self._store.names(_name(place, "claims"))
        if not names:
            return 0, None
        number = int(names[-1].rpartition("/")[2])
        return number, await self._read(place, f"beats/{number:06d}", BatchBeat)

    async def claim(self, place: Place, number: int, runner: str) -> bool:
        """Return False if another gateway has this claim."""
        try:
            await self._write(place, f"claims/{number:06d}", runner)
        except ObjectExists:
            return await self._read(place, f"claims/{number:06d}", str) == runner
        return True

    async def beat(self, place: Place, claim: int, beat: BatchBeat) -> None:
        data = msgspec.json.encode(beat)
        await self._store.replace(_name(place, f"beats/{claim:06d}"), data)

    async def log(self, place: Place) -> AsyncIterator[LogEntry]:
        """Yield all entries, the oldest first; a whole log may be larger than memory."""
        names = [_tail(name) for name in await self._store.names(_name(place, "log"))]
        for start in range(0, len(names), _READS_AT_ONCE):
            some = names[start : start + _READS_AT_ONCE]
            for entry in await asyncio.gather(
                *(self._read(place, name, LogEntry) for name in some)
            ):
                if entry is not None:
                    yield entry

    async def append(self, place: Place, number: int, entry: LogEntry) -> None:
        """Durable on return. Raises LogMoved.

        After StoreUnavailable it may be there or not: append the same entry again.
        """
        name = f"log/{number:06d}"
        try:
            await self._write(place, name, entry)
        except ObjectExists as exc:
            if await self._read(place, name, LogEntry) != entry:
                raise LogMoved(_name(place, name)) from exc

    async def sweep(self) -> None:
        """Delete batches that ended long ago."""
        if self._maybe_store is None:
            return
        names = await self._store.names(FOLDER)
        for name in names:
            _, owner, id, *rest = name.split("/")
            old = (made_at(id, PREFIX) or 0) + KEPT_S <= self.clock()
            if rest == ["done"] and old:
                rest_of_it = await self._store.names(_name((owner, id), ""))
                await self._store.delete([each for each in rest_of_it if each != name])
                await self._store.delete([name])  # last: it is by this that the rest is found

    async def _ending(self, place: Place, names: list[str]) -> LogEntry | None:
        entries = [name for name in names if "/log/" in name]
        last = await self._read(place, _tail(entries[-1]), LogEntry) if entries else None
        return last if last is not None and last.ending else None

    async def _write(self, place: Place, name: str, record: object) -> None:
        await self._store.create(_name(place, name), msgspec.json.encode(record))

    async def _read(self, place: Place, name: str, kind: type[Record]) -> Record | None:
        try:
            data = await self._store.get(_name(place, name))
        except ObjectMissing:
            return None
        return msgspec.json.decode(data, type=kind)


def _name(place: Place, name: str) -> str:
    return "/".join((FOLDER, *place, name)).rstrip("/")


def _tail(name: str) -> str:
    """Return the last two parts of an object's name, such as log/000001."""
    return "/".join(name.split("/")[-2:])


def _missing(id: str) -> NotFound:
    return NotFound(f"there is no batch {id[:80]!r}, or it belongs to another key")
