"""Unknown fields: refused by name, or with --lenient passed and named in a header."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from http_gateway.app import create_app
from http_gateway.config import GatewayConfig
from http_gateway.modes import read_origins
from sax.auth.authentication import Authentication
from sax.auth.token_file import TokenFile
from sax.storage.object_store import open_store
from tests.each_case import Failures, each_case
from tests.http_gateway.conftest import Connect
from tests.http_gateway.fake_cell import FakeCell, published
from tests.identities import Identities

CHAT = {"model": "llama", "messages": [{"role": "user", "content": "hi"}]}
LISTED = {"model": "/sax/test/llama"}


@pytest.fixture
def lenient(connect: Connect) -> httpx.AsyncClient:
    return connect(GatewayConfig(lenient=True))


BODIES = [
    ("/v1/chat/completions", CHAT),
    ("/v1/completions", {"model": "llama", "prompt": "hi"}),
    ("/v1/embeddings", {"model": "llama", "input": "hi"}),
    ("/v1/rerank", {"model": "llama", "query": "a", "documents": ["b"]}),
    ("/tokenize", {"model": "llama", "prompt": "hi"}),
    ("/detokenize", {"model": "llama", "tokens": [104]}),
    ("/v1/responses", {"model": "llama", "input": "hi"}),
    ("/v1/score", {"model": "llama", "text_1": "a", "text_2": "b"}),
    ("/v1/classify", {"model": "llama", "input": "hi"}),
    ("/pooling", {"model": "llama", "input": "hi"}),
    ("/v1/messages", {**CHAT, "max_tokens": 5}),
    ("/v1/messages/count_tokens", CHAT),
    ("/api/chat", {**CHAT, "stream": False}),
    ("/api/generate", {"model": "llama", "prompt": "hi", "stream": False}),
    ("/api/embed", {"model": "llama", "input": "hi"}),
    ("/api/embeddings", {"model": "llama", "prompt": "hi"}),
    ("/api/show", {"model": "llama"}),
    ("/generate", {"model": "/sax/test/llama", "query": "hi"}),
    ("/listcell", LISTED),
]
_CALL = {"type": "function", "function": {"name": "f", "arguments": "{}", "zest": 1}}
_FUNCTION = {"type": "function", "function": {"name": "f", "zest": 1}}
_TEXT = {"type": "text", "text": "x", "zest": 1}
_USER = {"role": "user", "content": "x"}
_USED = {"type": "tool_use", "id": "t", "name": "f", "input": {}, "zest": 1}
# Path, body, and the field inside it that nobody knows.
NESTED: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", {**CHAT, "tools": [_FUNCTION]}, "tools[0].function.zest"),
    (
        "/v1/chat/completions",
        {**CHAT, "tools": [{"function": {"name": "f"}}], "tool_choice": _FUNCTION},
        "tool_choice.function.zest",
    ),
    (
        "/v1/chat/completions",
        {**CHAT, "messages": [{"role": "assistant", "tool_calls": [_CALL]}, _USER]},
        "messages[0].tool_calls[0].function.zest",
    ),
    (
        "/v1/chat/completions",
        {**CHAT, "messages": [{"role": "user", "content": [_TEXT]}]},
        "messages[0].content[0].zest",
    ),
    (
        "/v1/chat/completions",
        {
            **CHAT,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"schema": {"type": "object"}, "zest": 1},
            },
        },
        "response_format.json_schema.zest",
    ),
    (
        "/v1/responses",
        {"model": "llama", "input": "x", "tools": [{"type": "function", "name": "f", "zest": 1}]},
        "tools[0].zest",
    ),
    (
        "/v1/completions",
        {"model": "llama", "prompt": "x", "structured_outputs": {"regex": "a", "zest": 1}},
        "structured_outputs.zest",
    ),
    (
        "/v1/responses",
        {"model": "llama", "input": [{**_USER, "zest": 1}]},
        "input[0].zest",
    ),
    (
        "/v1/messages",
        {**CHAT, "max_tokens": 5, "tools": [{"name": "f", "input_schema": {}, "zest": 1}]},
        "tools[0].zest",
    ),
    (
        "/v1/messages",
        {**CHAT, "max_tokens": 5, "messages": [{"role": "user", "content": [_TEXT]}]},
        "messages[0].content[0].zest",
    ),
    (
        "/v1/messages",
        {
            **CHAT,
            "max_tokens": 5,
            "messages": [_USER, {"role": "assistant", "content": [_USED]}, _USER],
        },
        "messages[1].content[0].zest",
    ),
    (
        "/api/chat",
        {**CHAT, "stream": False, "messages": [{**_USER, "zest": 1}]},
        "messages[0].zest",
    ),
    ("/api/chat", {**CHAT, "stream": False, "options": {"zest": 1}}, "options.zest"),
    ("/api/chat", {**CHAT, "stream": False, "tools": [_FUNCTION]}, "tools[0].function.zest"),
]


@each_case("path, body", BODIES)
async def test_unknown_fields_are_refused_or_ignored_and_named(
    path: str, body: dict[str, object], http: httpx.AsyncClient, lenient: httpx.AsyncClient
) -> None:
    strange = {**body, "zest": 1, "colour": {"of": "it"}}
    refused = await http.post(path, json=strange)
    if path.startswith("/api/"):  # Ollama itself ignores them
        assert refused.headers["x-sax-ignored-fields"] == "zest, colour"
    else:
        assert refused.status_code in (400, 422)
        assert "zest" in refused.text
        assert "x-sax-ignored-fields" not in refused.headers
    passed = await lenient.post(path, json=strange)
    assert passed.status_code == 200, passed.text
    assert passed.headers["x-sax-ignored-fields"] == "zest, colour"
    assert passed.headers["warning"] == '299 sax "unknown fields were ignored: zest, colour"'
    plain = await lenient.post(path, json=body)
    assert plain.status_code == 200
    assert not {"x-sax-ignored-fields", "warning"} & plain.headers.keys()


@each_case("path, body, field", NESTED)
async def test_unknown_fields_inside_others_are_too(
    path: str, body: dict[str, Any], field: str, http: httpx.AsyncClient, lenient: httpx.AsyncClient
) -> None:
    refused = await http.post(path, json=body)
    if path.startswith("/api/"):
        assert field in refused.headers["x-sax-ignored-fields"].split(", ")
    else:
        assert (refused.status_code, field in refused.text) == (400, True), refused.text
    passed = await lenient.post(path, json=body)
    assert passed.status_code == 200, passed.text
    assert field in passed.headers["x-sax-ignored-fields"].split(", ")


async def test_unknown_fields_of_forms_and_of_what_is_kept_are_too(connect: Connect) -> None:
    keeping = connect(GatewayConfig(lenient=True), open_store("memory://"))
    sound = {"files": {"file": ("a.wav", b"x" * 300)}, "data": {"model": "llama", "zest": "1"}}
    lines = {"files": {"file": ("a", b"{}")}, "data": {"purpose": "batch", "zest": "1"}}
    file = await keeping.post("/v1/files", **lines)
    order: dict[str, Any] = {
        "input_file_id": file.json()["id"],
        "endpoint": "/v1/responses",
        "zest": 1,
    }
    failures = Failures()
    asked: list[tuple[str, dict[str, Any]]] = [
        ("/v1/files", lines),
        ("/v1/audio/transcriptions", sound),
        ("/v1/batches", {"json": {**order, "completion_window": "24h"}}),
        ("/v1/conversations", {"json": {"zest": 1}}),
    ]
    for path, fields in asked:
        with failures.of(path):
            reply = await keeping.post(path, **fields)
            assert reply.status_code == 200, reply.text
            assert reply.headers["x-sax-ignored-fields"] == "zest"
    failures.end()


async def test_a_stream_names_them_before_its_first_event(lenient: httpx.AsyncClient) -> None:
    message = {"role": "user", "content": "hi", "mood": "good"}
    body = {**CHAT, "messages": [message], "stream": True, "stream_options": {"what": 1}}
    reply = await lenient.post("/v1/chat/completions", json=body)
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["x-sax-ignored-fields"] == "stream_options.what, messages[0].mood"
    assert reply.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("body", [{"verbosity": "low"}, {"echo": True}, {"temperature": 9}])
async def test_a_known_field_that_cannot_be_honoured_is_refused_all_the_same(
    lenient: httpx.AsyncClient, cell: FakeCell, body: dict[str, object]
) -> None:
    reply = await lenient.post("/v1/chat/completions", json={**CHAT, **body, "zest": 1})
    assert reply.status_code == 400
    assert next(iter(body)) in reply.json()["error"]["message"]
    assert cell.requests == []


async def test_names_cannot_forge_headers_and_are_few_and_short(
    lenient: httpx.AsyncClient,
) -> None:
    names = {'a\r\nset-cookie: x="1"': 1, "é" * 60: 1, **{f"n{i}": 1 for i in range(40)}}
    reply = await lenient.post("/v1/chat/completions", json={**CHAT, **names})
    assert reply.status_code == 200
    assert "set-cookie" not in reply.headers
    told = reply.headers["x-sax-ignored-fields"]
    assert told.startswith("a%0D%0Aset-cookie%3A%20x%3D%221%22, %C3%A9")
    assert told.endswith(", and 26 more")
    assert len(told) < 1000


async def test_too_many_unknown_fields_are_refused_in_both_modes(
    lenient: httpx.AsyncClient,
) -> None:
    names = {f"n{i}": 1 for i in range(100)}
    assert (await lenient.post("/v1/chat/completions", json=CHAT | names)).status_code == 400
    assert (await lenient.post("/listcell", json=LISTED | names)).status_code == 400


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


PAGE = "https://app.example.com"
CROSS_ORIGIN_CHAT = "/v1/chat/completions"
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
    reply = await guarded.options(CROSS_ORIGIN_CHAT, headers=PREFLIGHT)
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
        reply = await guarded.post(
            CROSS_ORIGIN_CHAT, json=sent, headers={"origin": PAGE, **headers}
        )
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
    assert (await guarded.options(CROSS_ORIGIN_CHAT, headers=strange)).status_code == 400
    plain = await guarded.get("/healthz", headers={"origin": "https://evil.example"})
    assert plain.status_code == 200
    assert "access-control-allow-origin" not in plain.headers
    off = await http.options(CROSS_ORIGIN_CHAT, headers=PREFLIGHT)
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


async def test_every_route_of_get_answers_head_with_the_same_head_and_no_body() -> None:
    """At both generations, those without their object included."""
    failures = Failures()
    for generation in (1, 2):
        app = create_app(
            FakeCell(published("/sax/test/llama")),
            GatewayConfig(saxml_generation=generation),
            store=open_store("memory://"),
        )
        described = [path for path, told in app.openapi()["paths"].items() if "get" in told]
        assert len(described) > 15
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://gateway"
        ) as http:
            for path in (*described, "/openapi.json", "/docs", "/page/look.css", "/nowhere"):
                path = path.replace("{", "").replace("}", "").replace("model_id", "llama")
                with failures.of(generation, path):
                    got, head = await http.get(path), await http.head(path)
                    assert head.status_code == got.status_code
                    assert not head.content
                    assert head.status_code != 405
                    if "metrics" not in path and "cell" not in path:  # they change between the two
                        assert told(head) == told(got)
    failures.end()


def told(reply: httpx.Response) -> dict[str, Any]:
    return {name: value for name, value in reply.headers.items() if name != "x-request-id"}


async def test_a_stream_ends_with_its_head(keeping: httpx.AsyncClient) -> None:
    form = {"purpose": (None, "batch"), "file": ("a.jsonl", b"x" * 100)}
    id = (await keeping.post("/v1/files", files=form)).json()["id"]
    head = await keeping.head(f"/v1/files/{id}/content")
    assert (head.status_code, head.headers["content-length"], head.content) == (200, "100", b"")


async def test_head_of_a_route_without_get_names_its_methods(http: httpx.AsyncClient) -> None:
    reply = await http.head("/publish")
    assert (reply.status_code, reply.headers["allow"]) == (405, "POST")
    assert (await http.delete("/listall")).headers["allow"] == "GET, HEAD, POST"
