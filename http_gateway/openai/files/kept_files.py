"""KeptFiles: files of clients on the object store.

A file is an object that describes it and pieces of a few megabytes each. The description is written
last and deleted first, so that a file is there as a whole or not at all.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable

import msgspec

from http_gateway.openai.stored.ids import made_at, new_id
from http_gateway.openai.stored.need import needed
from sax.errors import NotFound
from sax.storage.object_store import ObjectExists, ObjectMissing, ObjectStore

FOLDER = "files"
PREFIX = "file-"
PIECE_BYTES = 4 << 20  # well within the time limit of one write to a bucket
_ABANDONED_S = 86400.0  # an upload that has not ended by then never will


class KeptFile(msgspec.Struct, frozen=True, kw_only=True):
    """Description of one file."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    pieces: int
    expires_at: int | None = None


class KeptFiles:
    """The files of all owners. Methods raise StoreUnavailable, and InvalidRequest without a store.

    owner: the folder of a key (see `http_gateway.openai.stored.owner`).
    """

    def __init__(self, store: ObjectStore | None, clock: Callable[[], float] = time.time) -> None:
        self._maybe_store = store
        self._clock = clock

    @property
    def on(self) -> bool:
        return self._maybe_store is not None

    def check(self) -> None:
        """Raise InvalidRequest without a store."""
        needed(self._maybe_store, "files")

    @property
    def _store(self) -> ObjectStore:
        return needed(self._maybe_store, "files")

    async def add(
        self,
        owner: str,
        content: AsyncIterator[bytes],
        *,
        filename: str,
        purpose: str,
        ttl_s: int | None = None,
        id: str = "",
    ) -> KeptFile:
        """Write a file; durable on return. id: "": a new one.

        Writing the same content under the same id again changes nothing.
        """
        now = int(self._clock())
        id = id or new_id(PREFIX, now)
        size, pieces = 0, 0
        async for piece in in_pieces(content):
            await self._store.replace(_piece(owner, id, pieces), piece)
            size, pieces = size + len(piece), pieces + 1
        made = KeptFile(
            id=id,
            bytes=size,
            created_at=now,
            filename=filename,
            purpose=purpose,
            pieces=pieces,
            expires_at=None if ttl_s is None else now + ttl_s,
        )
        try:
            await self._store.create(_description(owner, id), msgspec.json.encode(made))
        except ObjectExists:
            return await self.get(owner, id)
        return made

    async def get(self, owner: str, id: str, param: str | None = None) -> KeptFile:
        """Raises NotFound, also for another owner's and expired ones."""
        store = self._store
        if made_at(id, PREFIX) is None:
            raise _missing(id, param)
        try:
            data = await store.get(_description(owner, id))
        except ObjectMissing as exc:
            raise _missing(id, param) from exc
        found = msgspec.json.decode(data, type=KeptFile)
        if self._expired(found):
            raise _missing(id, param)
        return found

    async def content(self, owner: str, file: KeptFile) -> AsyncIterator[bytes]:
        """Yield the content piece by piece. Raises NotFound if it is deleted meanwhile."""
        for number in range(file.pieces):
            try:
                yield await self._store.get(_piece(owner, file.id, number))
            except ObjectMissing as exc:
                raise _missing(file.id, None) from exc

    async def list(self, owner: str) -> list[KeptFile]:
        """Return the files of an owner, the oldest first."""
        names = await self._store.names(f"{FOLDER}/{owner}")
        ids = [name.split("/")[2] for name in names if name.endswith("/description")]
        found: list[KeptFile] = []
        for id in ids:
            try:
                found.append(await self.get(owner, id))
            except NotFound:  # deleted meanwhile, or expired
                continue
        return found

    async def delete(self, owner: str, id: str) -> None:
        """Raises NotFound."""
        await self.get(owner, id)
        await self._remove(owner, id)

    async def sweep(self) -> None:
        """Delete what has expired, and what is left of uploads that never ended."""
        if self._maybe_store is None:
            return
        names = await self._store.names(FOLDER)
        places = {tuple(name.split("/")[1:3]) for name in names}
        whole = {tuple(n.split("/")[1:3]) for n in names if n.endswith("/description")}
        for owner, id in sorted(places):
            if (owner, id) in whole:
                await self._sweep_one(owner, id)
            elif (made_at(id, PREFIX) or 0) + _ABANDONED_S <= self._clock():
                await self._remove(owner, id)

    async def _sweep_one(self, owner: str, id: str) -> None:
        try:
            data = await self._store.get(_description(owner, id))
        except ObjectMissing:
            return
        if self._expired(msgspec.json.decode(data, type=KeptFile)):
            await self._remove(owner, id)

    async def _remove(self, owner: str, id: str) -> None:
        await self._store.delete([_description(owner, id)])
        await self._store.delete(await self._store.names(f"{FOLDER}/{owner}/{id}"))

    def _expired(self, file: KeptFile) -> bool:
        return file.expires_at is not None and file.expires_at <= self._clock()


async def in_pieces(content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the same content in pieces of one size, the last perhaps smaller."""
    held = bytearray()
    async for data in content:
        held += data
        while len(held) >= PIECE_BYTES:
            yield bytes(held[:PIECE_BYTES])
            del held[:PIECE_BYTES]
    if held:
        yield bytes(held)


def _description(owner: str, id: str) -> str:
    return f"{FOLDER}/{owner}/{id}/description"


def _piece(owner: str, id: str, number: int) -> str:
    return f"{FOLDER}/{owner}/{id}/pieces/{number:06d}"


def _missing(id: str, param: str | None) -> NotFound:
    return NotFound(
        f"there is no file {id[:80]!r}: it expired, was deleted, or belongs to another key",
        param=param,
    )
