"""Whose request it is: every route but the probes asks, and the cell hears of the user only."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Scope

from http_gateway.__main__ import tell_of_security
from http_gateway.app import create_app
from http_gateway.auth import PROBES, client_host, parse_networks
from http_gateway.catalog import Catalog
from http_gateway.config import GatewayConfig, parse_flags
from sax.auth.authentication import Authentication
from sax.auth.credentials import presented_account, presented_token
from sax.auth.token_file import TokenFile
from sax.errors import AdminUnavailable, Unauthenticated
from sax.types import PublishedModel
from tests.each_case import each_case
from tests.http_gateway.fake_cell import FakeCell, published
from tests.identities import Identities

PROMPT = {"model": "llama", "prompt": "hi"}


class Listening(FakeCell):
    """Remembers whose token each call of the cell would carry."""

    def __init__(self, *models: PublishedModel) -> None:
        super().__init__(*models)
        self.asked_with: list[str] = []
        self.listed_with: list[str] = []

    async def generate_to(self, *args: Any, **settings: Any) -> None:
        self.asked_with.append(await asyncio.create_task(_token()))
        await super().generate_to(*args, **settings)

    async def list_all(self, cell: str | None = None) -> Sequence[PublishedModel]:
        self.listed_with.append(presented_token())
        return await super().list_all(cell)


async def _token() -> str:
    return presented_token()


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Listening:
    monkeypatch.setenv("SAX_TOKEN", "the-gateways-own")
    return Listening(published("/sax/test/llama"))


@pytest.fixture
def people(tmp_path: Path) -> Identities:
    return Identities(tmp_path, "alice")


def client(
    cell: FakeCell, people: Identities | None = None, *, generation: int = 2
) -> httpx.AsyncClient:
    """Of a gateway that asks who calls if there are people, and else does not."""
    asks = Authentication(TokenFile(people.path) if people else None)
    app = create_app(cell, GatewayConfig(saxml_generation=generation), asks)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://gateway")


@pytest.fixture
async def asking(cell: Listening, people: Identities) -> AsyncIterator[httpx.AsyncClient]:
    async with client(cell, people) as http:
        yield http


ROUTES = [
    ("GET", "/"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
    ("GET", "/cell"),
    ("DELETE", "/cell/requests/{number}"),
    ("GET", "/cell/keys"),
    ("GET", "/cell/log"),
    ("GET", "/cell/requests"),
    ("GET", "/mcp/servers"),
    ("GET", "/versions"),
    ("POST", "/mcp/call"),
    ("POST", "/mcp/tools"),
    ("GET", "/version"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/infill"),
    ("POST", "/pooling"),
    ("GET", "/listall"),
    ("POST", "/publish"),
    ("PUT", "/update"),
    ("POST", "/unpublish"),
    ("POST", "/canary"),
    ("POST", "/promote"),
    ("POST", "/abort"),
    ("POST", "/rollback"),
    ("POST", "/weights"),
    ("GET", "/events"),
    ("POST", "/generate"),
    ("GET", "/v1/models"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/api/chat"),
    ("POST", "/api/generate"),
    ("POST", "/api/embed"),
    ("POST", "/api/embeddings"),
    ("POST", "/api/show"),
    ("GET", "/api/tags"),
    ("GET", "/api/ps"),
    ("GET", "/api/version"),
    ("POST", "/api/pull"),
    ("POST", "/api/push"),
    ("POST", "/api/create"),
    ("POST", "/api/copy"),
    ("DELETE", "/api/delete"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/responses"),
    ("GET", "/v1/responses/{response_id}"),
    ("DELETE", "/v1/responses/{response_id}"),
    ("GET", "/v1/responses/{response_id}/input_items"),
    ("POST", "/v1/responses/{response_id}/cancel"),
    ("POST", "/v1/audio/transcriptions"),
    ("POST", "/v1/audio/speech"),
    ("POST", "/v1/audio/translations"),
    ("POST", "/v1/conversations"),
    ("GET", "/v1/conversations/{conversation_id}"),
    ("POST", "/v1/conversations/{conversation_id}"),
    ("DELETE", "/v1/conversations/{conversation_id}"),
    ("GET", "/v1/conversations/{conversation_id}/items"),
    ("POST", "/v1/conversations/{conversation_id}/items"),
    ("GET", "/v1/conversations/{conversation_id}/items/{item_id}"),
    ("DELETE", "/v1/conversations/{conversation_id}/items/{item_id}"),
    ("POST", "/v1/files"),
    ("GET", "/v1/files"),
    ("GET", "/v1/files/{file_id}"),
    ("DELETE", "/v1/files/{file_id}"),
    ("GET", "/v1/files/{file_id}/content"),
    ("POST", "/v1/batches"),
    ("GET", "/v1/batches"),
    ("GET", "/v1/batches/{batch_id}"),
    ("POST", "/v1/batches/{batch_id}/cancel"),
    ("POST", "/v1/classify"),
    ("POST", "/v1/rerank"),
    ("POST", "/v1/score"),
    ("GET", "/no/such/route"),
]


@each_case("method, path", ROUTES)
async def test_every_route_but_the_probes_wants_a_token(
    method: str, path: str, cell: Listening, people: Identities, asking: httpx.AsyncClient
) -> None:
    cell.asked_with.clear()
    for who in ("", "stranger"):
        answer = await asking.request(method, path, json=PROMPT, headers=people.headers(who))
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert answer.headers["x-request-id"]
    assert not cell.asked_with
    known = await asking.request(method, path, json=PROMPT, headers=people.headers("alice"))
    assert known.status_code != 401


async def test_every_route_of_the_application_is_tried_above(people: Identities) -> None:
    asked = {(method, path) for method, path in ROUTES}
    async with client(FakeCell(), people) as http:
        reply = await http.get("/openapi.json", headers=people.headers("alice"))
    told = {
        (method.upper(), path)
        for path, methods in reply.json()["paths"].items()
        for method in methods
    }
    exempt = {("GET", path) for path in (*PROBES, "/docs")} | {("POST", "/ping")}
    twins = {("POST", "/listall"), ("GET", "/listcell"), ("POST", "/listcell")}
    twins |= {("POST", path) for path in ("/classify", "/rerank", "/v2/rerank", "/score")}
    assert told - asked == exempt | twins | {("GET", "/v1/models/{name}")}


def paths_of(routes: Iterable[object]) -> Iterator[str]:
    for route in routes:
        if included := getattr(route, "original_router", None):
            yield from paths_of(included.routes)
        elif path := getattr(route, "path", ""):
            yield path


@pytest.mark.extended
@pytest.mark.parametrize("generation", [1, 2])
async def test_no_route_answers_a_stranger_listed_or_not(
    people: Identities, generation: int
) -> None:
    """Asks the application itself, which has routes that /openapi.json does not tell of."""
    asks = Authentication(TokenFile(people.path))
    app = create_app(FakeCell(), GatewayConfig(saxml_generation=generation), asks)
    paths = {*paths_of(app.routes)} - {*PROBES, "/page/{name}", "/docs", "/docs/{name}"}
    assert {"/", "/metrics", "/openapi.json", "/v1/chat/completions", "/generate"} <= paths
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        for path in (*sorted(paths), "/healthz/", "/metrics/", "//healthz", "/healthz/../metrics"):
            for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "TRACE"):
                answer = await http.request(method, path)
                assert answer.status_code == 401, (method, path)


async def test_a_browser_gets_the_page_without_a_token_and_its_data_only_with_one(
    people: Identities,
) -> None:
    async with client(Listening(published("/sax/test/llama")), people) as http:
        page = await http.get("/", headers={"accept": "text/html,*/*;q=0.8"})
        assert (page.status_code, page.headers["content-type"][:9]) == (200, "text/html")
        assert (await http.get("/page/app.js")).status_code == 200
        assert (await http.get("/page/index.html")).status_code == 404
        for method, path in (("GET", "/cell"), ("POST", "/page/app.js"), ("GET", "/page")):
            answer = await http.request(method, path, headers={"accept": "text/html"})
            assert answer.status_code == 401, path
        known = await http.get("/cell", headers=people.headers("alice"))
        assert [model["model"] for model in known.json()["models"]] == ["/sax/test/llama"]


async def test_a_refusal_is_told_in_the_words_of_its_api_family(
    cell: Listening, people: Identities
) -> None:
    async with client(cell, people) as http:
        openai = (await http.post("/v1/completions", json=PROMPT)).json()["error"]
        assert (openai["type"], openai["code"]) == ("authentication_error", "invalid_api_key")
        assert "API key" in openai["message"]
        assert list((await http.get("/listall")).json()) == ["detail"]
    async with client(cell, people, generation=1) as http:
        old = await http.get("/listcell")
        assert (old.status_code, list(json.loads(old.text))) == (401, ["Error"])


async def test_probes_answer_strangers_and_tell_them_nothing_of_models(
    cell: Listening, people: Identities
) -> None:
    async with client(cell, people) as http:
        assert (await http.get("/healthz")).status_code == 200
        strange = await http.get("/readyz")
        assert (strange.status_code, strange.json()) == (200, {"status": "ready"})
        assert (await http.post("/ping")).status_code == 200
        known = await http.get("/readyz", headers=people.headers("alice"))
        assert known.json()["models"] == ["/sax/test/llama"]
        cell.models.clear()
        strange = await http.get("/readyz")
        assert (strange.status_code, strange.json()) == (503, {"status": "not ready"})
        assert (await http.get("/health")).status_code == 503
        assert (await http.get("/healthz", headers=people.headers("stranger"))).status_code == 401


@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
@pytest.mark.parametrize("asks", [True, False])
async def test_the_cell_is_asked_in_the_users_name_and_listed_in_the_gateways(
    cell: Listening, people: Identities, header: str, asks: bool
) -> None:
    token = people.tokens["alice"]
    headers = {header: f"Bearer {token}" if header == "authorization" else token}
    async with client(cell, people if asks else None) as http:
        whole = await http.post("/v1/completions", json=PROMPT, headers=headers)
        assert whole.status_code == 200
        body = {**PROMPT, "stream": True}
        streamed = await http.post("/v1/completions", json=body, headers=headers)
        assert streamed.status_code == 200
    assert cell.asked_with == [token, token]
    assert set(cell.listed_with) == {"the-gateways-own"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Basic eDp5"},
        {"x-api-key": "two words"},
        {"authorization": "Bearer " + "x" * 5000},
    ],
)
async def test_a_user_without_a_token_never_gets_the_gateways(
    cell: Listening, headers: dict[str, str]
) -> None:
    async with client(cell) as http:
        assert (await http.post("/v1/completions", json=PROMPT, headers=headers)).is_success
    assert cell.asked_with == [""]


async def test_a_gateway_that_the_cell_refuses_does_not_blame_the_user(
    cell: Listening, people: Identities
) -> None:
    cell.admin_failure = Unauthenticated("the token is not valid here")
    async with client(cell, people) as http:
        answer = await http.get("/v1/models", headers=people.headers("alice"))
    assert answer.status_code == 503
    assert "SAX_TOKEN" in answer.json()["error"]["message"]
    with pytest.raises(Unauthenticated):  # of a program of the user's own it is the user's
        await Catalog(cell).refresh()
    cell.admin_failure = AdminUnavailable("gone")
    async with client(cell, people) as http:
        answer = await http.get("/v1/models", headers=people.headers("alice"))
    assert answer.json()["error"]["message"] == "gone"


@pytest.mark.parametrize(
    ("flags", "warns"),
    [
        ([], False),
        (["--host", "0.0.0.0"], True),
        (["--host", "0.0.0.0", "--tokens", "f"], False),
    ],
)
def test_an_open_gateway_that_others_reach_warns_loudly(
    caplog: pytest.LogCaptureFixture, flags: list[str], warns: bool
) -> None:
    caplog.set_level(logging.WARNING)
    tell_of_security(parse_flags(flags))
    assert ("OPEN TO EVERYONE" in caplog.text) == warns


def test_a_gateway_that_would_lend_its_certificate_to_strangers_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAX_TLS_CERT", "c")
    tell_of_security(parse_flags(["--tokens", "f"]))
    assert caplog.text == ""
    tell_of_security(parse_flags([]))
    assert "under the gateway's own name" in caplog.text


def test_half_a_certificate_is_a_wrong_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_flags(["--tls_cert", "c"])
    assert "--tls_key" in capsys.readouterr().err


async def test_the_cell_hears_the_clients_address_and_not_what_it_says_about_itself() -> None:
    heard: list[str] = []

    class Hearing(FakeCell):
        async def generate_to(self, *args: Any, **settings: Any) -> None:
            heard.append(presented_account())
            await super().generate_to(*args, **settings)

    transport = httpx.ASGITransport(
        create_app(Hearing(published("/sax/test/llama")), GatewayConfig()), client=("10.1.2.3", 4)
    )
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        named = {"x-forwarded-for": "1.2.3.4"}
        assert (await http.post("/v1/completions", json=PROMPT, headers=named)).status_code == 200
    assert heard == ["10.1.2.3"]


PROXIES = parse_networks("10.0.0.0/8, 192.168.1.5")


def scope(peer: str, *forwarded: str) -> Scope:
    headers = [(b"x-forwarded-for", value.encode()) for value in forwarded]
    return {"type": "http", "client": (peer, 4711), "headers": headers}


def test_without_trusted_proxies_the_header_means_nothing() -> None:
    assert client_host(scope("10.0.0.1", "1.2.3.4"), ()) == "10.0.0.1"


def test_a_stranger_cannot_name_an_address() -> None:
    assert client_host(scope("8.8.8.8", "1.2.3.4"), PROXIES) == "8.8.8.8"


def test_the_nearest_address_that_is_no_proxy_counts_and_not_what_the_client_wrote() -> None:
    by_two = scope("10.0.0.1", "6.6.6.6, 1.2.3.4, 192.168.1.5")
    assert client_host(by_two, PROXIES) == "1.2.3.4"
    assert client_host(scope("10.0.0.1", "6.6.6.6", "1.2.3.4"), PROXIES) == "1.2.3.4"


def test_a_proxy_that_says_nothing_usable_counts_itself() -> None:
    assert client_host(scope("10.0.0.1"), PROXIES) == "10.0.0.1"
    assert client_host(scope("10.0.0.1", "1.2.3.4, unknown"), PROXIES) == "10.0.0.1"


def test_a_bad_network_is_refused_with_the_flags_name() -> None:
    with pytest.raises(ValueError, match="--trusted_proxies 'gate': .*give addresses or networks"):
        parse_networks("gate")
