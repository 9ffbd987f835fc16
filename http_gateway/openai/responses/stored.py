"""StoredResponses: answers that are kept on the object store, each for its own key."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from http_gateway.openai.responses.items import Item
from http_gateway.openai.stored import made_at, needed, new_id, owner_folder
from sax.errors import InvalidRequest, NotFound
from sax.fields.field import RequestRoute
from sax.fields.table import field
from sax.storage.object_store import ObjectMissing, ObjectStore

FOLDER = "responses"
PREFIX = "resp_"
MOST_BYTES = 8 << 20  # of a conversation that goes on, with its images


class StoredResponse(msgspec.Struct, frozen=True):
    response: dict[str, Any]
    input: list[Item]  # those of earlier responses included


class StoredResponses:
    def __init__(
        self, store: ObjectStore | None, ttl_s: float, clock: Callable[[], float] = time.time
    ) -> None:
        """store: None: nothing is kept. ttl_s: from the creation of a response."""
        self._store = store
        self._ttl_s = ttl_s
        self._clock = clock

    @property
    def on(self) -> bool:
        return self._store is not None

    def new_id(self) -> str:
        return new_id(PREFIX, self._clock())

    async def put(self, kept: StoredResponse) -> None:
        """Durable on return. Raises StoreUnavailable."""
        name = self._name(kept.response["id"])
        await self._known("store").replace(name, msgspec.json.encode(kept))

    async def get(self, id: str, param: str | None = None) -> StoredResponse:
        """Raises NotFound, also for another key's and expired ones; InvalidRequest without a store;
        StoreUnavailable."""
        store = self._known(param)
        if self._expired(id):
            raise _missing(id, param)
        try:
            data = await store.get(self._name(id))
        except ObjectMissing as exc:
            raise _missing(id, param) from exc
        return msgspec.json.decode(data, type=StoredResponse)

    async def conversation(self, id: str, param: str) -> list[Item]:
        """Return the items that a response ends. Raises what `get` does, and InvalidRequest for a
        conversation that has become too long to go on."""
        kept = await self.get(id, param)
        size = len(msgspec.json.encode(kept))
        if size > MOST_BYTES:
            raise InvalidRequest(
                f"the conversation of {param} has {size} bytes; at most {MOST_BYTES} can go on: "
                "begin a new one, and send what matters in input",
                param=param,
            )
        items = [*kept.input, *kept.response["output"]]
        field(RequestRoute.RESPONSES, "input").check_count(len(items), param)
        return items

    async def delete(self, id: str) -> None:
        """Raises NotFound, InvalidRequest without a store, StoreUnavailable."""
        await self.get(id)
        await self._known(None).delete([self._name(id)])

    async def sweep(self) -> None:
        """Delete what has expired. Raises StoreUnavailable."""
        if self._store is None:
            return
        names = await self._store.names(FOLDER)
        old = [name for name in names if self._expired(name.rpartition("/")[2])]
        await self._store.delete(old)

    def _expired(self, id: str) -> bool:
        """True for an id that is none, too."""
        created = made_at(id, PREFIX)
        return created is None or created + self._ttl_s <= self._clock()

    def _name(self, id: str) -> str:
        return f"{FOLDER}/{owner_folder()}/{id}"

    def check(self, param: str) -> None:
        """Raise InvalidRequest without a store."""
        self._known(param)

    def _known(self, param: str | None) -> ObjectStore:
        return needed(self._store, "responses", param)


def _missing(id: str, param: str | None) -> NotFound:
    return NotFound(
        f"there is no response {id[:80]!r}: it was not stored, expired or was deleted, or it "
        "belongs to another key",
        param=param,
    )
