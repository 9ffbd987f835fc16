"""Browsers of other origins: refused unless listed, and then preflights need no key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from http_gateway.app import create_app
from http_gateway.config import GatewayConfig
from http_gateway.modes.cross_origin import read_origins
from sax.auth.authentication import Authentication
from sax.auth.token_file import TokenFile
from sax.storage.object_store import open_store
from tests.each_case import each_case
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


FORM = "application/x-www-form-urlencoded"
PUBLISH = '{"model": "/sax/test/m", "model_path": "llama", "checkpoint": "None", "replicas": "1"}'
HERE = "http://127.0.0.1:8888"


def open_gateway(cell: FakeCell, **settings: Any) -> httpx.AsyncClient:
    """A gateway without keys at the address that a test's URL names."""
    app = create_app(cell, GatewayConfig(**settings), store=open_store("memory://"))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=HERE)


@each_case(
    "settings, headers, status",
    [
        ({}, {"content-type": FORM}, 200),  # curl
        ({}, {"origin": HERE, "content-type": "application/json"}, 200),
        ({}, {"origin": HERE, "content-type": "text/plain"}, 400),
        ({}, {"origin": PAGE, "content-type": "application/json"}, 403),
        *(({}, {"origin": PAGE, "content-type": kind}, 403) for kind in ("text/plain", FORM)),
        ({}, {"sec-fetch-site": "cross-site"}, 403),
        ({}, {"host": "evil.example:8888", "content-type": "application/json"}, 403),
        ({"host": "0.0.0.0"}, {"host": "sax.internal"}, 200),
        ({"host": "0.0.0.0"}, {"origin": PAGE}, 403),
        ({"cors_origins": PAGE}, {"origin": PAGE, "content-type": "text/plain"}, 200),
        ({"cors_origins": PAGE}, {"host": "app.example.com"}, 200),
        ({"saxml_generation": 1}, {"origin": PAGE}, 403),
    ],
)
async def test_without_keys_only_its_own_pages_and_listed_ones_change_the_cell(
    settings: dict[str, Any], headers: dict[str, str], status: int
) -> None:
    cell = FakeCell()
    async with open_gateway(cell, **settings) as http:
        reply = await http.post("/publish", content=PUBLISH, headers=headers)
    assert reply.status_code == status
    assert ("/sax/test/m" in cell.models) is (status == 200)
    assert status != 403 or "--cors_origins" in reply.text


@each_case("headers", [{"origin": PAGE}, {"host": "evil.example"}, {"sec-fetch-site": "same-site"}])
async def test_no_route_that_changes_or_costs_something_is_open_to_foreign_pages(
    headers: dict[str, str],
) -> None:
    async with open_gateway(FakeCell()) as http:
        paths: dict[str, Any] = (await http.get("/openapi.json")).json()["paths"]
        asked = [(path, way) for path, told in paths.items() for way in told if way != "get"]
        assert len(asked) > 20
        for path, way in asked:
            reply = await http.request(way, path, content="{}", headers=headers)
            assert reply.status_code == 403, (way, path)


async def test_a_name_that_a_stranger_gave_this_machine_reads_nothing() -> None:
    async with open_gateway(FakeCell()) as http:
        for path in ("/", "/cell", "/listall", "/v1/models", "/metrics", "/page/look.css"):
            reply = await http.get(path, headers={"host": "evil.example", "accept": "text/html"})
            assert reply.status_code == 403, path
            assert "127.0.0.1" in reply.text


async def test_a_file_is_uploaded_from_its_own_page_alone() -> None:
    form: dict[str, Any] = {"purpose": (None, "batch"), "file": ("a.jsonl", b"x")}
    async with open_gateway(FakeCell()) as http:
        for origin, status in ((HERE, 200), (PAGE, 403)):
            reply = await http.post("/v1/files", files=form, headers={"origin": origin})
            assert reply.status_code == status
