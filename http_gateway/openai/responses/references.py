"""Items of `input` that only name others: the id of an item tells the response that has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from http_gateway.openai.responses.items import Item, response_of
from http_gateway.openai.responses.stored import StoredResponses
from http_gateway.openai.unsupported import refuse_unsupported
from sax.errors import InvalidRequest, NotFound
from sax.fields.field import RequestRoute
from sax.fields.table import field
from sax.format import quoted

REFERENCE = "item_reference"
MOST_READ = 32  # responses, for one request
_ID = field(RequestRoute.RESPONSES, "input.id")


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
            raise _missing(id, at)
        read.add(response)
        try:
            kept = await stored.get(response, at)
        except NotFound as error:
            raise _missing(id, at) from error
        found = {each["id"]: each for each in (*kept.input, *kept.response["output"])}
        known = {**found, **known}
        if id not in known:
            raise _missing(id, at)
    return [known[str(item["id"])] if is_reference(item) else item for item in items]


def _id_of(item: Mapping[str, object], n: int) -> str:
    at, id = f"input[{n}]", item.get("id")
    if not isinstance(id, str):
        raise InvalidRequest(f"{at}.id: send the id of an item", param=f"{at}.id")
    _ID.check_text(id, f"{at}.id")
    others = {name: value for name, value in item.items() if name not in ("id", "type")}
    refuse_unsupported(others, {}, at=f"{at}.")
    return id


def _missing(id: str, at: str) -> NotFound:
    return NotFound(
        f"{at}: no stored response of this key that has ended has an item {quoted(id)}: send the "
        "item itself",
        param=at,
    )
