"""The list of models as Anthropic's clients read it; test_routes.py has OpenAI's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx

from sax.types import PublishedModel
from tests.http_gateway.fake_cell import FakeCell, published

VERSION = {"anthropic-version": "2023-06-01"}


def at(name: str, seconds: float, context: int = 0) -> PublishedModel:
    model = published(f"/sax/test/{name}")
    return replace(model, published_at_s=seconds, max_context=context)


async def listed(http: httpx.AsyncClient, **query: Any) -> dict[str, Any]:
    reply = await http.get("/v1/models", params=query, headers=VERSION)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def test_models_have_what_anthropics_clients_read(
    cell: FakeCell, http: httpx.AsyncClient
) -> None:
    cell.models = {"a": at("a", 1e9, 512)}
    found = {
        "type": "model",
        "id": "/sax/test/a",
        "display_name": "a",
        "created_at": "2001-09-09T01:46:40+00:00",
        "lifecycle": "active",
        "max_input_tokens": 512,
        "max_tokens": 512,
    }
    page = {"data": [found], "has_more": False, "first_id": found["id"], "last_id": found["id"]}
    assert await listed(http, beta="true") == page
    one = await http.get("/v1/models/a", headers=VERSION)
    assert one.json() == found
    assert (await http.get("/v1/models")).json()["data"][0]["created"] == 10**9
    cell.models = {}
    empty = {"data": [], "has_more": False, "first_id": None, "last_id": None}
    assert await listed(http) == empty


async def test_pages_follow_each_other_in_both_directions(
    cell: FakeCell, http: httpx.AsyncClient
) -> None:
    cell.models = {f"/sax/test/{n}": at(str(n), n) for n in range(5)}

    async def ids(**query: Any) -> tuple[list[str], bool]:
        page = await listed(http, **query)
        return [each["display_name"] for each in page["data"]], page["has_more"]

    assert await ids(limit=2) == (["4", "3"], True)
    assert await ids(limit=2, after_id="/sax/test/3") == (["2", "1"], True)
    assert await ids(limit=2, after_id="/sax/test/1") == (["0"], False)
    assert await ids(limit=2, before_id="/sax/test/2") == (["4", "3"], False)
    assert await ids(limit=1, before_id="/sax/test/2") == (["3"], True)


async def test_a_wrong_page_is_refused(http: httpx.AsyncClient) -> None:
    wrong = {"limit": 0}, {"limit": "many"}, {"after_id": "none"}, {"before_id": "none"}
    for query in wrong:
        reply = await http.get("/v1/models", params=query, headers=VERSION)
        assert reply.status_code in (400, 404), query
        assert next(iter(query)) in reply.text
