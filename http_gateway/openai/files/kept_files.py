"""KeptFiles: files of clients on the object store.

A file is an object that describes it and pieces of a few megabytes each. The description is written
last and deleted first, so that a file is there as a whole or not at all.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable

import msgspec

from http_gateway.openai.stored import made_at, needed, new_id
from sax.errors import InvalidRequest, NotFound
from sax.storage.object_store import ObjectExists, ObjectMissing, ObjectStore

FOLDER = "files"
PREFIX = "file-"
PIECE_BYTES = 4 << 20  # well within the time limit of one write to a bucket
_MOST_SEEN = 100_000  # descriptions that are remembered
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

    owner: the folder of a key (see `http_gateway.openai.stored`).
    """

    def __init__(
        self,
        store: ObjectStore | None,
        clock: Callable[[], float] = time.time,
        *,
        most_bytes: int = 0,
    ) -> None:
        """most_bytes: of all files of one owner together; 0: any."""
        self._maybe_store = store
        self._clock = clock
        self._most_bytes = most_bytes
        self._seen: dict[tuple[str, str], KeptFile] = {}  # by owner and id, as they were listed
        self._arriving: Counter[str] = Counter()  # bytes of uploads under way, by owner

    @property
    def on(self) -> bool:
        return self._maybe_store is not None

    def check(self) -> None:
        """Raise InvalidRequest without a store."""
        needed(self._maybe_store, "files")

    @property
    def _store(self) -> ObjectStore:
        return needed(self._maybe_store, "files")

    @contextlib.asynccontextmanager
    async def room(self, owner: str, size: int) -> AsyncGenerator[None]:
        """Hold room for a new file of so many bytes. Raises InvalidRequest if the owner's files
        would be too large together: those of batches count, and are written all the same."""
        self._arriving[owner] += size
        try:
            if self._most_bytes:
                await self._check_room(owner, size)
            yield
        finally:
            self._arriving[owner] -= size

    async def _check_room(self, owner: str, size: int) -> None:
        used = sum(file.bytes for file in await self.list(owner))
        if used + self._arriving[owner] > self._most_bytes:
            raise InvalidRequest(
                f"the files of this key have {used} bytes, and with {size} more they would exceed "
                f"the {self._most_bytes} of --max_key_bytes: delete some (DELETE /v1/files/ID), or "
                "ask the operators of this gateway for more",
                param="file",
            )

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
        if id and (known := await self._described(owner, id)):
            return known
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
        self.check()
        if made_at(id, PREFIX) is None:
            raise _missing(id, param)
        found = await self._described(owner, id)
        if found is None or self._expired(found):
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
        found = [await self._listed(owner, id) for id in ids]
        return [file for file in found if file is not None and not self._expired(file)]

    async def _listed(self, owner: str, id: str) -> KeptFile | None:
        """Return the description of a listed file, which is read once: it never changes."""
        file = self._seen.get((owner, id)) or await self._described(owner, id)
        if file is not None:
            if len(self._seen) >= _MOST_SEEN:
                self._seen.clear()
            self._seen[owner, id] = file
        return file

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

    async def _described(self, owner: str, id: str) -> KeptFile | None:
        try:
            data = await self._store.get(_description(owner, id))
        except ObjectMissing:
            return None
        return msgspec.json.decode(data, type=KeptFile)

    async def _sweep_one(self, owner: str, id: str) -> None:
        found = await self._described(owner, id)
        if found is not None and self._expired(found):
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
