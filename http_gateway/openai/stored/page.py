"""Lists in pages, as OpenAI has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from sax.errors import NotFound
from sax.format import quoted

MOST = 100


class PageQuery(BaseModel):
    """Query of a list. `after`: the id that the page follows."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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
