"""Objects stored for clients: their owners, ids and paged lists, a store that retries, and how much
each key keeps and may keep."""

from __future__ import annotations

import asyncio
import hashlib
import re
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from sax.auth.acl import caller
from sax.errors import InvalidRequest, NotFound, PermissionDenied
from sax.format import quoted
from sax.storage.object_store import MeasuredStore, ObjectStore, StoreUnavailable

Result = TypeVar("Result")
Store = TypeVar("Store", bound=ObjectStore)

_TRIES = 8
PAUSE_S = 0.25  # before the second try; each pause is twice as long as the one before


class PatientStore:
    """An ObjectStore over another one.

    `create` is tried once: after a failure the object may be there, and only the caller can tell
    whether it is its own.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def create(self, name: str, data: bytes) -> None:
        await self._store.create(name, data)

    async def replace(self, name: str, data: bytes) -> None:
        await self._again(lambda: self._store.replace(name, data))

    async def get(self, name: str) -> bytes:
        return await self._again(lambda: self._store.get(name))

    async def names(self, prefix: str) -> list[str]:
        return await self._again(lambda: self._store.names(prefix))

    async def delete(self, names: Sequence[str]) -> None:
        await self._again(lambda: self._store.delete(names))

    async def _again(self, call: Callable[[], Awaitable[Result]]) -> Result:
        for number in range(_TRIES - 1):
            try:
                return await call()
            except StoreUnavailable:
                await asyncio.sleep(PAUSE_S * 2**number)
        return await call()


_ID = re.compile(r"[a-z]+[_-]([0-9a-f]{10})[0-9a-f]{22}")

MOST = 100


class PageQuery(BaseModel):
    """Query of a list. `after`: the id that the page follows."""

    model_config = ConfigDict(defer_build=True, extra="forbid", frozen=True)

    after: Annotated[str, Field(max_length=200)] | None = None
    limit: Annotated[int, Field(ge=1, le=MOST)] = 20
    order: Literal["asc", "desc"] = "desc"


def ids_of_page(ids: Sequence[str], query: PageQuery) -> tuple[list[str], bool]:
    """Return the ids of a page, and whether more follow. ids: the oldest first.

    Raises NotFound.
    """
    listed = [*ids] if query.order == "asc" else [*reversed(ids)]
    start = 0
    if query.after is not None:
        if query.after not in listed:
            raise NotFound(
                f"after is {quoted(query.after)}: give the id of an entry of this list",
                param="after",
            )
        start = listed.index(query.after) + 1
    end = start + query.limit
    return listed[start:end], end < len(listed)


def page_of(entries: Sequence[dict[str, Any]], query: PageQuery) -> dict[str, Any]:
    """Return a page of entries, each with an `id`. entries: the oldest first.

    Raises NotFound.
    """
    by_id = {entry["id"]: entry for entry in entries}
    ids, more = ids_of_page([*by_id], query)
    return list_body([by_id[id] for id in ids], more=more)


def list_body(data: Sequence[dict[str, Any]], *, more: bool) -> dict[str, Any]:
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": more,
    }


def needed(store: Store | None, what: str, param: str | None = None) -> Store:
    """Return the store. Raises InvalidRequest if the gateway has none.

    what: things that it would keep, in the plural.
    """
    if store is None:
        raise InvalidRequest(
            f"this gateway keeps no {what}: start it with --files and a folder, or a bucket's URL",
            param=param,
        )
    return store


def refuse_batches() -> None:
    """Raise PermissionDenied: the operator wants neither files nor batches."""
    raise PermissionDenied(
        "this gateway takes no files and runs no batches (--batches off): send requests one by "
        "one, or ask its operators"
    )


def new_id(prefix: str, now_s: float) -> str:
    """prefix: with the dash or underscore that ends it."""
    return f"{prefix}{int(now_s):010x}{uuid.uuid4().hex[:22]}"


def made_at(id: str, prefix: str) -> int | None:
    """Return the second that an id was made in, since the epoch; None: it is no such id."""
    found = _ID.fullmatch(id) if id.startswith(prefix) else None
    return int(found[1], 16) if found else None


def owner_folder() -> str:
    """Return the name of the folder of the caller's objects."""
    return folder_of_key(caller().name)


def folder_of_key(name: str) -> str:
    """Return the folder of a key's objects; a key's name may hold characters that no folder has."""
    return hashlib.sha256(name.encode()).hexdigest()[:32] if name else "everyone"


MEASURE_S = 300.0  # between two measurements; what other gateways add meanwhile is not counted


class KeptSpace:
    """Counts what this gateway writes, and all that is there whenever it is measured."""

    def __init__(
        self, store: MeasuredStore | None, folders: Sequence[str], most_bytes: int = 0
    ) -> None:
        """folders: each has a folder of every owner. most_bytes: of one owner; 0: any."""
        self._store = store
        self._folders = folders
        self._most_bytes = most_bytes
        self._used: Counter[str] = Counter()  # by owner

    async def measure(self) -> None:
        """Raises StoreUnavailable."""
        if self._store is None:
            return
        used: Counter[str] = Counter()
        for folder in self._folders:
            for name, size in (await self._store.sizes(folder)).items():
                used[name.split("/")[1]] += size
        self._used = used

    def has_room(self, owner: str) -> bool:
        return not self._most_bytes or self._used[owner] < self._most_bytes

    def add(self, owner: str, size: int) -> None:
        self._used[owner] += size

    def check(self, owner: str, param: str) -> None:
        """Raise InvalidRequest for an owner without room."""
        if self.has_room(owner):
            return
        whose = "callers without a key have" if owner == "everyone" else "this key has"
        raise InvalidRequest(
            f"the responses and conversations that {whose} stored here hold {self._used[owner]} "
            f"bytes, of the {self._most_bytes} of --max_key_bytes: delete some (DELETE "
            "/v1/responses/ID), send store: false, or ask the operators of this gateway for more",
            param=param,
        )
