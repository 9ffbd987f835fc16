"""Browsers of other origins: refused unless listed, and then preflights need no key."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from http_gateway.app import create_app
from http_gateway.config import GatewayConfig
from http_gateway.modes.cross_origin import read_origins
from sax.auth.authentication import Authentication
from sax.auth.token_file import TokenFile
from tests.http_gateway.conftest import Connect
from tests.http_gateway.fake_cell import FakeCell
from tests.identities import Identities

PAGE = "https://app.example.com"
CHAT = "/v1/chat/completions"
PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}


@pytest.fixture
def people(tmp_path: Path) -> Identities:
    return Identities(tmp_path, "alice")


@pytest.fixture
def guarded(cell: FakeCell, people: Identities) -> httpx.AsyncClient:
    """A gateway with keys that lists one page."""
    config = GatewayConfig(cors_origins=f"{PAGE}, http://localhost:3000")
    app = create_app(cell, config, Authentication(TokenFile(people.path)))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://gateway")


async def test_a_preflight_of_a_listed_page_needs_no_key(guarded: httpx.AsyncClient) -> None:
    reply = await guarded.options(CHAT, headers=PREFLIGHT)
    assert reply.status_code == 200
    assert reply.headers["access-control-allow-origin"] == PAGE
    assert "POST" in reply.headers["access-control-allow-methods"]
    allowed = reply.headers["access-control-allow-headers"].lower()
    assert {"authorization", "content-type"} <= {name.strip() for name in allowed.split(",")}
    assert "access-control-allow-credentials" not in reply.headers


async def test_replies_and_errors_can_be_read_by_a_listed_page(
    guarded: httpx.AsyncClient, people: Identities
) -> None:
    body = {"model": "llama", "messages": [{"role": "user", "content": "hi"}]}
    key = people.headers("alice")
    for status, headers, sent in (
        (200, key, body),
        (200, key, {**body, "stream": True}),
        (400, key, {**body, "zest": 1}),
        (401, {}, body),
        (404, key, {**body, "model": "none"}),
    ):
        reply = await guarded.post(CHAT, json=sent, headers={"origin": PAGE, **headers})
        assert reply.status_code == status
        assert reply.headers["access-control-allow-origin"] == PAGE
        exposed = reply.headers["access-control-expose-headers"]
        assert {"x-request-id", "retry-after"} <= {name.strip() for name in exposed.split(",")}


async def test_an_unexpected_error_can_be_read_too(
    connect: Connect, cell: FakeCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    http = connect(GatewayConfig(cors_origins="*"))
    await http.get("/readyz")  # the catalog has been read
    cell.detokenize = broken  # type: ignore[assignment]
    body = {"model": "llama", "tokens": [97]}
    reply = await http.post("/detokenize", json=body, headers={"origin": PAGE})
    assert reply.status_code == 500
    assert reply.headers["access-control-allow-origin"] == "*"


async def test_other_pages_get_no_headers(
    guarded: httpx.AsyncClient, http: httpx.AsyncClient
) -> None:
    strange = PREFLIGHT | {"origin": "https://evil.example"}
    assert (await guarded.options(CHAT, headers=strange)).status_code == 400
    plain = await guarded.get("/healthz", headers={"origin": "https://evil.example"})
    assert plain.status_code == 200
    assert "access-control-allow-origin" not in plain.headers
    off = await http.options(CHAT, headers=PREFLIGHT)
    assert (off.status_code, off.headers["allow"]) == (405, "POST")
    assert "access-control-allow-origin" not in off.headers


def test_origins_are_read_and_what_is_none_is_refused() -> None:
    assert read_origins("") == ()
    assert read_origins(" *") == ("*",)
    assert read_origins("http://a:1, https://b") == ("http://a:1", "https://b")
    for wrong in ("example.com", "https://", "https://a/path", "://a"):
        with pytest.raises(ValueError, match="--cors_origins .* give scheme and host"):
            read_origins(wrong)
        with pytest.raises(ValueError, match="--cors_origins"):
            GatewayConfig(cors_origins=wrong)
