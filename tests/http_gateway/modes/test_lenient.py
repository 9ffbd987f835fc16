"""Unknown fields: refused by name, or with --lenient passed and named in a header."""

from __future__ import annotations

import httpx
import pytest

from http_gateway.config import GatewayConfig
from tests.each_case import each_case
from tests.http_gateway.conftest import Connect
from tests.http_gateway.fake_cell import FakeCell

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
    ("/predict", {"instances": [{"model": "llama", "prompt": "hi"}]}),
    ("/listcell", LISTED),
]


@each_case("path, body", BODIES)
async def test_unknown_fields_are_refused_or_ignored_and_named(
    path: str, body: dict[str, object], http: httpx.AsyncClient, lenient: httpx.AsyncClient
) -> None:
    strange = {**body, "zest": 1, "colour": {"of": "it"}}
    refused = await http.post(path, json=strange)
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
