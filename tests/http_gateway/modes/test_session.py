"""Sessions of HTTP requests: by header on every route, else by OpenAI's fields."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.each_case import each_case
from tests.http_gateway.fake_cell import FakeCell

CHAT = {"model": "llama", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"model": "llama", "prompt": "hi"}


@each_case("path, body", [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)])
@each_case(
    "fields, session",
    [
        ({}, ""),
        ({"user": "ann"}, "ann"),
        ({"user": "ann", "prompt_cache_key": "talk 1"}, "talk 1"),
        ({"stream": True, "user": "ann"}, "ann"),
    ],
)
async def test_the_cache_key_or_else_the_user_is_the_session(
    fields: dict[str, Any],
    session: str,
    path: str,
    body: dict[str, Any],
    http: httpx.AsyncClient,
    cell: FakeCell,
) -> None:
    reply = await http.post(path, json={**body, **fields})
    assert reply.status_code == 200
    assert [request.session for request in cell.requests] == [session]
    cell.requests.clear()


async def test_the_header_counts_more_and_is_of_one_request_only(
    http: httpx.AsyncClient, cell: FakeCell
) -> None:
    for headers in ({"x-session-id": "talk 2"}, {}):
        body = {**CHAT, "user": "ann", "n": 2}
        assert (await http.post("/v1/chat/completions", json=body, headers=headers)).is_success
    assert [request.session for request in cell.requests] == ["talk 2", "talk 2", "ann", "ann"]


async def test_saxmls_route_has_sessions_too(http: httpx.AsyncClient, cell: FakeCell) -> None:
    body = {"model": "/sax/test/llama", "query": "hi"}
    for headers in ({"x-session-id": "talk 3"}, {}):
        assert (await http.post("/generate", json=body, headers=headers)).is_success
    assert cell.sessions == ["talk 3", ""]


@pytest.mark.parametrize("session", ["", "x" * 513])
async def test_a_session_without_a_name_or_with_a_long_one_is_refused(
    http: httpx.AsyncClient, session: str
) -> None:
    reply = await http.post("/v1/completions", json=COMPLETION, headers={"x-session-id": session})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "x-session-id"


@pytest.mark.parametrize("name", ["user", "prompt_cache_key"])
async def test_a_long_name_in_the_body_is_refused_by_its_field(
    http: httpx.AsyncClient, name: str
) -> None:
    reply = await http.post("/v1/completions", json={**COMPLETION, name: "x" * 513})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == name
