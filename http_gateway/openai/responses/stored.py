"""StoredResponses: answers that are kept on the object store, each for its own key.

Items of `input` that only name another are read from them: an item's id tells its response.

A response in the background has three objects: as it was accepted, a mark with signs of life while
it runs, and its end. The end is created once, so that of the gateway that runs it, one that cancels
it and one that finds it dead only the first decides.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import msgspec

from http_gateway.openai.responses.items import RESPONSE as PREFIX
from http_gateway.openai.responses.items import Item, response_of
from http_gateway.openai.stored import KeptSpace, made_at, needed, new_id, owner_folder
from http_gateway.openai.unsupported import refuse_unsupported
from sax.errors import InvalidRequest, NotFound
from sax.fields.field import RequestRoute
from sax.fields.table import field
from sax.format import quoted
from sax.storage.object_store import MeasuredStore, ObjectExists, ObjectMissing

FOLDER = "responses"
ENDS = "response_ends"  # of those in the background
OPEN = "open_responses"  # marks of those in the background that run
MOST_BYTES = 8 << 20  # of a conversation that goes on, with its images
RUNNING = "in_progress"
REFERENCE = "item_reference"
MOST_READ = 32  # responses, for the references of one request
_ID = field(RequestRoute.RESPONSES, "input.id")

Place = tuple[str, str]  # owner and id


class StoredResponse(msgspec.Struct, frozen=True):
    response: dict[str, Any]
    input: list[Item]  # those of earlier responses included

    @property
    def id(self) -> str:
        return self.response["id"]

    @property
    def running(self) -> bool:
        return self.response.get("status") == RUNNING

    def ended(self, status: str, message: str = "") -> StoredResponse:
        """Return a response that has ended without an answer. message: why it failed."""
        fault = {"code": "server_error", "message": message} if message else None
        return StoredResponse({**self.response, "status": status, "error": fault}, self.input)


class StoredResponses:
    def __init__(
        self,
        store: MeasuredStore | None,
        ttl_s: float,
        clock: Callable[[], float] = time.time,
        space: KeptSpace | None = None,
    ) -> None:
        """store: None: nothing is kept. ttl_s: from the creation of a response. space: None: there
        is room for all."""
        self._store = store
        self._ttl_s = ttl_s
        self._clock = clock
        self._space = space or KeptSpace(store, ())

    @property
    def on(self) -> bool:
        return self._store is not None

    @property
    def has_room(self) -> bool:
        """False without a store, and once the caller keeps as much as it may."""
        return self.on and self._space.has_room(owner_folder())

    def new_id(self) -> str:
        return new_id(PREFIX, self._clock())

    async def put(self, kept: StoredResponse) -> None:
        """Durable on return. Raises StoreUnavailable."""
        data = msgspec.json.encode(kept)
        await self._known("store").replace(_name(FOLDER, (owner_folder(), kept.id)), data)
        self._space.add(owner_folder(), len(data))

    async def get(self, id: str, param: str | None = None) -> StoredResponse:
        """Raises NotFound, also for another key's and expired ones; InvalidRequest without a store;
        StoreUnavailable."""
        self._known(param)
        if self._expired(id):
            raise _missing(id, param)
        place = (owner_folder(), id)
        kept = await self._read(FOLDER, place)
        if kept is None:
            raise _missing(id, param)
        return (await self._read(ENDS, place) or kept) if kept.running else kept

    async def conversation(self, id: str, param: str) -> list[Item]:
        """Return the items that a response ends. Raises what `get` does, and InvalidRequest for a
        conversation that has become too long to go on, or a response that still runs."""
        kept = await self.get(id, param)
        if kept.running:
            raise InvalidRequest(
                f"the response of {param} is still in progress: wait for its end", param=param
            )
        items = [*kept.input, *kept.response["output"]]
        check_length(items, param)
        return items

    async def delete(self, id: str) -> None:
        """Raises what `get` does, and InvalidRequest for one that runs."""
        if (await self.get(id)).running:
            raise InvalidRequest("this response is in progress: cancel it first")
        place = (owner_folder(), id)
        await self._known(None).delete([_name(FOLDER, place), _name(ENDS, place)])

    # --- of responses in the background; all raise StoreUnavailable ---

    def place(self, id: str) -> Place:
        """Return the place of a response of the caller."""
        return owner_folder(), id

    async def begin(self, kept: StoredResponse) -> Place:
        """Keep a response that is about to run. Durable on return."""
        place = (owner_folder(), kept.id)
        await self.beat(place, 0)
        await self.put(kept)
        return place

    async def beat(self, place: Place, number: int) -> None:
        """Give a sign of life of a response that runs."""
        await self._known(None).replace(_name(OPEN, place), str(number).encode())

    async def open(self, but: Container[Place]) -> dict[Place, bytes]:
        """Return the responses that run, of all owners, each with its last sign of life.

        One list of names, and a read of each. but: those that are left out, unread.
        """
        found: dict[Place, bytes] = {}
        for name in await self._known(None).names(OPEN):
            _, owner, id = name.split("/")
            if (owner, id) in but:
                continue
            try:
                found[owner, id] = await self._known(None).get(name)
            except ObjectMissing:
                continue  # it has just ended
        return found

    async def has_ended(self, place: Place) -> bool:
        return await self._read(ENDS, place) is not None

    async def finish(self, place: Place, kept: StoredResponse) -> None:
        """Keep how a response ended, unless that is known already."""
        store, data = self._known(None), msgspec.json.encode(kept)
        try:
            await store.create(_name(ENDS, place), data)
            self._space.add(place[0], len(data))
        except ObjectExists:
            pass
        await store.delete([_name(OPEN, place)])

    async def give_up(self, place: Place, message: str) -> None:
        """Let a response fail that nobody runs."""
        kept = await self._read(FOLDER, place)
        if kept is None:  # its gateway died before it told the client of it
            await self._known(None).delete([_name(OPEN, place)])
        else:
            await self.finish(place, kept.ended("failed", message))

    async def sweep(self) -> None:
        """Delete what has expired. Raises StoreUnavailable."""
        if self._store is None:
            return
        for folder in (FOLDER, ENDS):
            names = await self._store.names(folder)
            old = [name for name in names if self._expired(name.rpartition("/")[2])]
            await self._store.delete(old)

    async def _read(self, folder: str, place: Place) -> StoredResponse | None:
        try:
            data = await self._known(None).get(_name(folder, place))
        except ObjectMissing:
            return None
        return msgspec.json.decode(data, type=StoredResponse)

    def _expired(self, id: str) -> bool:
        """True for an id that is none, too."""
        created = made_at(id, PREFIX)
        return created is None or created + self._ttl_s <= self._clock()

    def check(self, param: str) -> None:
        """Raise InvalidRequest without a store, or without room in it."""
        self._known(param)
        self._space.check(owner_folder(), param)

    def _known(self, param: str | None) -> MeasuredStore:
        return needed(self._store, "responses", param)


def check_length(items: list[Item], param: str) -> None:
    """Raise InvalidRequest for a conversation that is too long to go on."""
    size = len(msgspec.json.encode(items))
    if size > MOST_BYTES:
        raise InvalidRequest(
            f"the conversation of {param} has {size} bytes; at most {MOST_BYTES} can go on: "
            "begin a new one, and send what matters in input",
            param=param,
        )
    field(RequestRoute.RESPONSES, "input").check_count(len(items), param)


def is_reference(item: Mapping[str, object]) -> bool:
    kind = item.get("type")
    return kind == REFERENCE or (kind is None and [*item] == ["id"])


async def dereferenced(
    items: Sequence[Mapping[str, object]], earlier: Sequence[Item], stored: StoredResponses
) -> list[Mapping[str, object]]:
    """Return the items, those that name others replaced by these. earlier: items of the
    conversation so far.

    Raises NotFound and what `stored` raises, naming the item, and InvalidRequest for one that is
    in the conversation already.
    """
    named = {_id_of(item, n): n for n, item in enumerate(items) if is_reference(item)}
    for id in named.keys() & {each.get("id") for each in earlier}:
        at = f"input[{named[id]}].id"
        raise InvalidRequest(
            f"{at} {quoted(id)} is in the conversation already: leave it out", param=at
        )
    known: dict[str, Mapping[str, Any]] = {}
    read: set[str] = set()
    for id, n in reversed(named.items()):  # the newest response has the older items, too
        if id in known:
            continue
        response, at = response_of(id), f"input[{n}].id"
        if response in read or len(read) >= MOST_READ:
            raise _no_item(id, at)
        read.add(response)
        try:
            kept = await stored.get(response, at)
        except NotFound as error:
            raise _no_item(id, at) from error
        found = {each["id"]: each for each in (*kept.input, *kept.response["output"])}
        known = {**found, **known}
        if id not in known:
            raise _no_item(id, at)
    return [known[str(item["id"])] if is_reference(item) else item for item in items]


def _id_of(item: Mapping[str, object], n: int) -> str:
    at, id = f"input[{n}]", item.get("id")
    if not isinstance(id, str):
        raise InvalidRequest(f"{at}.id: send the id of an item", param=f"{at}.id")
    _ID.check_text(id, f"{at}.id")
    others = {name: value for name, value in item.items() if name not in ("id", "type")}
    refuse_unsupported(others, {}, at=f"{at}.")
    return id


def _no_item(id: str, at: str) -> NotFound:
    return NotFound(
        f"{at}: no stored response of this key that has ended has an item {quoted(id)}: send the "
        "item itself",
        param=at,
    )


def _name(folder: str, place: Place) -> str:
    return "/".join((folder, *place))


def _missing(id: str, param: str | None) -> NotFound:
    return NotFound(
        f"there is no response {id[:80]!r}: it was not stored, expired or was deleted, or it "
        "belongs to another key",
        param=param,
    )
