"""KeptConversations: conversations on the object store, each a log of its items.

A conversation is an object that describes it and numbered entries, created once each: of two
answers that end at the same time each finds its own place. An entry adds items, or deletes one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from http_gateway.openai.responses.items import Item
from http_gateway.openai.stored import KeptSpace, made_at, needed, new_id, owner_folder
from sax.errors import InvalidRequest, NotFound
from sax.storage.object_store import MeasuredStore, ObjectExists, ObjectMissing

CONVERSATIONS = "conversations"
PREFIX = "conv_"
MOST_ENTRIES = 2000
_READS_AT_ONCE = 8
_MOST_SEEN = 64 << 20  # bytes of entries that are remembered: they never change


class ConversationHead(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created_at: int
    metadata: dict[str, str] = {}

    def body(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "conversation",
            "created_at": self.created_at,
            "metadata": self.metadata,
        }


class ConversationEntry(msgspec.Struct, frozen=True, kw_only=True):
    at: int  # seconds since the epoch
    items: list[Item] = []
    deleted: str = ""  # id of an item


class KeptConversations:
    """Those of the caller. Methods raise StoreUnavailable, InvalidRequest without a store, and
    NotFound, also for another key's and expired ones."""

    def __init__(
        self,
        store: MeasuredStore | None,
        ttl_s: float,
        space: KeptSpace,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """ttl_s: from the last entry of a conversation."""
        self._store = store
        self._ttl_s = ttl_s
        self._space = space
        self._clock = clock
        self._seen: dict[str, bytes] = {}
        self._seen_bytes = 0

    def check(self, param: str | None = None) -> None:
        """Raise InvalidRequest without a store, or without room in it."""
        needed(self._store, "conversations", param)
        self._space.check(owner_folder(), param or "items")

    async def create(self, metadata: dict[str, str], items: Sequence[Item]) -> ConversationHead:
        self.check()
        now = int(self._clock())
        head = ConversationHead(id=new_id(PREFIX, now), created_at=now, metadata=metadata)
        await self._write(
            _name(head.id, "entries/000000"), ConversationEntry(at=now, items=[*items])
        )
        await self._replace(head)
        return head

    async def head(self, id: str, param: str | None = None) -> ConversationHead:
        store = needed(self._store, "conversations", param)
        if made_at(id, PREFIX) is None:
            raise _missing(id, param)
        try:
            data = await store.get(_name(id, "head"))
        except ObjectMissing as exc:
            raise _missing(id, param) from exc
        return msgspec.json.decode(data, type=ConversationHead)

    async def relabel(self, id: str, metadata: dict[str, str]) -> ConversationHead:
        old = await self.head(id)
        made = ConversationHead(id=id, created_at=old.created_at, metadata=metadata)
        await self._replace(made)
        return made

    async def delete(self, id: str) -> None:
        await self.head(id)
        store = needed(self._store, "conversations")
        await store.delete([_name(id, "head")])
        await store.delete(await store.names(_name(id, "entries")))

    async def items(self, id: str, param: str | None = None) -> list[Item]:
        """Return the items, the oldest first."""
        await self.head(id, param)
        entries = await self._entries(id)
        if not entries or entries[-1].at + self._ttl_s <= self._clock():
            raise _missing(id, param)
        gone = {entry.deleted for entry in entries}
        return [item for entry in entries for item in entry.items if item["id"] not in gone]

    async def add(self, id: str, items: Sequence[Item]) -> None:
        """Add items behind those that are there. Durable on return."""
        await self._append(id, ConversationEntry(at=int(self._clock()), items=[*items]))

    async def remove(self, id: str, item_id: str) -> None:
        """Delete one item."""
        if item_id not in [item["id"] for item in await self.items(id)]:
            raise NotFound(f"there is no item {item_id[:80]!r} in this conversation")
        await self._append(id, ConversationEntry(at=int(self._clock()), deleted=item_id))

    async def sweep(self) -> None:
        """Delete conversations whose last entry is old."""
        if self._store is None:
            return
        last: dict[tuple[str, str], str] = {}
        for name in await self._store.names(CONVERSATIONS):
            _, owner, id, kind, *_ = name.split("/")
            if kind == "entries" and (made_at(id, PREFIX) or 0) + self._ttl_s <= self._clock():
                last[owner, id] = name  # the names are sorted
        for (owner, id), name in last.items():
            entry = await self._entry(name)
            if entry.at + self._ttl_s <= self._clock():
                await self._store.delete([f"{CONVERSATIONS}/{owner}/{id}/head"])
                found = await self._store.names(f"{CONVERSATIONS}/{owner}/{id}")
                await self._store.delete(found)

    async def _append(self, id: str, entry: ConversationEntry) -> None:
        names = await needed(self._store, "conversations").names(_name(id, "entries"))
        number = int(names[-1].rpartition("/")[2]) + 1 if names else 0
        while number < MOST_ENTRIES:
            try:
                return await self._write(_name(id, f"entries/{number:06d}"), entry)
            except ObjectExists:
                number += 1  # another answer was first
        raise InvalidRequest(
            f"this conversation has {MOST_ENTRIES} entries, the most that one has: begin a new one",
            param="conversation",
        )

    async def _entries(self, id: str) -> list[ConversationEntry]:
        names = await needed(self._store, "conversations").names(_name(id, "entries"))
        found: list[ConversationEntry] = []
        for start in range(0, len(names), _READS_AT_ONCE):
            some = names[start : start + _READS_AT_ONCE]
            found += await asyncio.gather(*map(self._entry, some))
        return found

    async def _entry(self, name: str) -> ConversationEntry:
        data = self._seen.get(name)
        if data is None:
            data = await needed(self._store, "conversations").get(name)
            if self._seen_bytes + len(data) > _MOST_SEEN:
                self._seen.clear()
                self._seen_bytes = 0
            self._seen[name] = data
            self._seen_bytes += len(data)
        return msgspec.json.decode(data, type=ConversationEntry)

    async def _replace(self, head: ConversationHead) -> None:
        data = msgspec.json.encode(head)
        await needed(self._store, "conversations").replace(_name(head.id, "head"), data)

    async def _write(self, name: str, entry: ConversationEntry) -> None:
        data = msgspec.json.encode(entry)
        await needed(self._store, "conversations").create(name, data)
        self._space.add(owner_folder(), len(data))


def _name(id: str, name: str) -> str:
    return f"{CONVERSATIONS}/{owner_folder()}/{id}/{name}"


def _missing(id: str, param: str | None) -> NotFound:
    return NotFound(
        f"there is no conversation {id[:80]!r}: it expired or was deleted, or it belongs to "
        "another key",
        param=param,
    )
