import json
import logging
from collections.abc import Iterator

import httpx
import pytest

from http_gateway.config import GatewayConfig
from tests.each_case import each_case
from tests.http_gateway.conftest import Connect
from tests.http_gateway.fake_cell import FakeCell


async def test_a_request_id_is_taken_from_the_client_or_made(http: httpx.AsyncClient):
    given = await http.get("/healthz", headers={"x-request-id": "abc-1"})
    assert given.headers["x-request-id"] == "abc-1"
    made = [(await http.get("/healthz")).headers["x-request-id"] for _ in range(2)]
    assert made[0] != made[1]


@pytest.mark.extended
@each_case("path", ["/nope", "/v1/nope", "/v1/models", "/metrics"])
async def test_every_route_and_every_refusal_has_a_request_id(path: str, http: httpx.AsyncClient):
    answer = await http.get(path, headers={"x-request-id": "abc-1"})
    assert answer.headers["x-request-id"] == "abc-1"


@pytest.mark.parametrize("bad", ["x" * 129, "a\x7fb"])
async def test_a_request_id_that_could_harm_a_log_is_replaced(http: httpx.AsyncClient, bad: str):
    answer = await http.get("/healthz", headers={"x-request-id": bad})
    assert answer.headers["x-request-id"] != bad


async def test_a_body_over_the_limit_is_refused_announced_or_not(connect: Connect):
    http = connect(GatewayConfig(max_body_bytes=100))

    async def unannounced():
        for _ in range(3):
            yield b'"' + b"x" * 49

    announced = await http.post("/publish", content=b"x" * 101)
    chunked = await http.post("/v1/completions", content=unannounced())
    assert (announced.status_code, chunked.status_code) == (413, 413)
    assert announced.json()["detail"].startswith("the body is larger than 100 bytes")
    assert chunked.json()["error"]["code"] == "body_too_large"


async def test_a_body_of_just_the_limit_is_read(connect: Connect):
    body = b'{"model":"/sax/test/llama"}'
    http = connect(GatewayConfig(max_body_bytes=len(body)))
    assert (await http.post("/listcell", content=body)).status_code == 200


async def test_a_bug_is_answered_with_500_and_logged_with_the_request_id(
    cell: FakeCell, http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
):
    cell.models = None  # pyright: ignore[reportAttributeAccessIssue]
    with caplog.at_level(logging.ERROR, "http_gateway.envelope"):
        answer = await http.get("/v1/models", headers={"x-request-id": "abc-1"})
        saxml = await http.post("/unpublish", json={"model": "/sax/test/llama"})
    assert answer.status_code == saxml.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"
    told = "internal error: see the gateway's log for request"
    assert answer.json()["error"]["message"] == f"{told} abc-1"
    assert saxml.json() == {"detail": f"{told} {saxml.headers['x-request-id']}"}
    assert "abc-1" in caplog.text
    assert "NoneType" not in answer.text


DEEP_TEXT = "[" * 20_000 + "]" * 20_000
HI = {"model": "smollm2", "messages": [{"role": "user", "content": "hi"}]}


def deep_bodies() -> Iterator[tuple[str, str]]:
    """Routes, and bodies as JSON, put together as text: no encoder follows as many levels."""
    deep = ("/v1/chat/completions", {"structured_outputs": {
        "json": DEEP_TEXT, "disable_any_whitespace": True}})  # fmt: skip
    texts = [deep, ("/v1/chat/completions", {"guided_json": DEEP_TEXT})]
    texts += [("/publish", {"overrides": {"A": DEEP_TEXT}})]
    for path, fields in texts:
        yield path, json.dumps(HI | fields)
    tool = {"type": "function", "function": {"name": "f", "parameters": "DEEP"}}
    for path, fields in (
        ("/v1/chat/completions", {"guided_json": "DEEP"}),
        ("/v1/chat/completions", {"structured_outputs": {"json": "DEEP"}}),
        ("/v1/chat/completions", {"chat_template_kwargs": "DEEP"}),
        ("/v1/chat/completions", {"metadata": "DEEP"}),
        ("/v1/chat/completions", {"tools": [tool]}),
        ("/v1/responses", {"input": "hi", "metadata": "DEEP"}),
        ("/v1/messages", {"max_tokens": 1, "tools": [{"name": "f", "input_schema": "DEEP"}]}),
        ("/api/chat", {"format": "DEEP"}),
        ("/publish", {"checkpoint": "DEEP"}),
    ):
        for depth in (300, 850, 925, 960, 980):
            value = '{"items":' * depth + "{}" + "}" * depth
            yield path, json.dumps(HI | fields).replace('"DEEP"', value)


@each_case("path, body", deep_bodies())
async def test_what_is_nested_deeply_is_answered_without_an_internal_error(
    path: str, body: str, http: httpx.AsyncClient
):
    reply = await http.post(path, content=body, headers={"content-type": "application/json"})
    assert reply.status_code < 500, reply.text[:200]


async def test_requests_are_counted_by_route_and_code(http: httpx.AsyncClient):
    await http.get("/v1/models/llama")
    await http.get("/v1/models/smollm2")
    await http.get("/v1/models/zzz")
    await http.get("/some/where")
    text = (await http.get("/metrics")).text
    llama = 'model="/sax/test/llama"'
    route = 'route="/v1/models/{name:path}"'
    assert f'sax_gateway_requests_total{{code="200",model="/sax/test/llama",{route}}} 1.0' in text
    assert f'sax_gateway_requests_total{{code="404",model="",{route}}} 1.0' in text
    assert 'sax_gateway_requests_total{code="404",model="",route="other"} 1.0' in text
    assert f"sax_gateway_request_seconds_count{{{llama},{route}}} 1.0" in text
    assert "sax_gateway_requests_in_flight 1.0" in text  # the scrape itself
