"""/v1/messages of a gateway before a cell whose answers can be worked out by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from http_gateway.app import create_app
from http_gateway.config import GatewayConfig
from sax.auth.authentication import Authentication
from sax.auth.token_file import TokenFile
from sax.errors import QueueFull, ReplicaLost, UnsupportedParameter
from sax.types import AnswerFormat, ChatOptions, TokenChunk
from tests.each_case import each_case
from tests.http_gateway.conftest import Connect
from tests.http_gateway.described import check
from tests.http_gateway.fake_cell import FakeCell
from tests.identities import Identities

BODY: dict[str, Any] = {
    "model": "smollm2",
    "max_tokens": 5,
    "messages": [{"role": "user", "content": "Hi"}],
}
TOOL = {"name": "f", "input_schema": {"type": "object"}}


async def ask(http: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    headers = {"anthropic-version": "2023-06-01", "x-request-id": "r1"}
    return await http.post("/v1/messages", json={**BODY, **fields}, headers=headers)


def events_of(reply: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(data) for data in re.findall(r"^data: (.*)$", reply.text, re.MULTILINE)]


async def test_a_message_is_answered_with_text_and_counts(
    cell: FakeCell, http: httpx.AsyncClient
) -> None:
    reply = await ask(http)
    body = reply.json()
    assert reply.headers["request-id"] == "r1"
    assert body["content"] == [{"type": "text", "text": " 2 3 4 5 6"}]
    assert body["model"] == "smollm2"
    assert body["stop_reason"] == "max_tokens"
    assert (body["usage"]["input_tokens"], body["usage"]["output_tokens"]) == (2, 5)
    (request,) = cell.requests
    assert request.request_id.startswith("r1/msg_")
    assert request.chat == ChatOptions(divided=True)


async def test_a_stream_has_the_same_text(cell: FakeCell, http: httpx.AsyncClient) -> None:
    reply = await ask(http, stream=True)
    assert reply.headers["content-type"].startswith("text/event-stream")
    found = events_of(reply)
    pieces = [event["delta"]["text"] for event in found if event["type"] == "content_block_delta"]
    assert "".join(pieces) == " 2 3 4 5 6"
    assert found[-2]["usage"]["output_tokens"] == 5
    assert found[-1] == {"type": "message_stop"}


async def test_calls_are_blocks(cell: FakeCell, http: httpx.AsyncClient) -> None:
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    cell.said = [
        TokenChunk(text, (1,), answer_format=AnswerFormat("hermes"), prompt_tokens=3),
        TokenChunk("", (), finish_reason="stop", completion_tokens=2),
    ]
    body = (await ask(http, tools=[TOOL], tool_choice={"type": "any"})).json()
    assert [block["type"] for block in body["content"]] == ["tool_use"]
    assert body["stop_reason"] == "tool_use"
    assert cell.requests[0].chat.tool_choice == "required"
    found = events_of(await ask(http, tools=[TOOL], stream=True))
    assert found[-2]["delta"]["stop_reason"] == "tool_use"


async def test_tokens_are_counted(cell: FakeCell, http: httpx.AsyncClient) -> None:
    body = {"model": "smollm2", "messages": BODY["messages"], "tools": [TOOL], "system": "Sys"}
    reply = await http.post("/v1/messages/count_tokens", json=body)
    assert reply.json() == {"input_tokens": 5}
    assert [tool.name for tool in cell.chats[0].tools] == ["f"]


@each_case("fields, status, kind, word", [
    ({"mood": 1}, 400, "invalid_request_error", "mood"),
    ({"max_tokens": "x"}, 400, "invalid_request_error", "max_tokens"),
    ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, 400,
     "invalid_request_error", "document"),
    ({"model": "none"}, 404, "not_found_error", "none"),
])  # fmt: skip
async def test_an_error_has_anthropics_shape(
    fields: dict[str, Any], status: int, kind: str, word: str, http: httpx.AsyncClient
) -> None:
    reply = await ask(http, **fields)
    body = reply.json()
    assert (reply.status_code, body["type"], body["error"]["type"]) == (status, "error", kind)
    assert word in body["error"]["message"]
    assert body["request_id"] == reply.headers["request-id"] == "r1"


async def test_errors_of_every_layer_have_anthropics_shape(
    cell: FakeCell, connect: Connect, tmp_path: Path
) -> None:
    http = connect(GatewayConfig(max_body_bytes=500))
    large = await ask(http, system="x" * 600)
    assert (large.status_code, large.json()["error"]["type"]) == (413, "request_too_large")
    missing = await http.get("/v1/messages/batches")
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")
    wrong = await http.get("/v1/messages")
    assert (wrong.status_code, wrong.json()["type"]) == (405, "error")
    assert wrong.headers["allow"] == "POST"
    cell.failure = QueueFull("full", retry_after_s=2)
    full = await ask(http)
    assert (full.status_code, full.json()["error"]["type"]) == (429, "rate_limit_error")
    assert full.headers["retry-after"] == "2"
    cell.failure = ReplicaLost("gone")
    lost = await ask(http)
    assert (lost.status_code, lost.json()["error"]["type"]) == (503, "overloaded_error")


async def test_a_key_may_come_in_either_header(cell: FakeCell, tmp_path: Path) -> None:
    people = Identities(tmp_path, "ann")
    asks = Authentication(TokenFile(people.path))
    transport = httpx.ASGITransport(create_app(cell, GatewayConfig(), asks))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        refused = await ask(http)
        check(2, "POST", "/v1/messages", refused)
        assert refused.status_code == 401
        assert refused.json()["error"]["type"] == "authentication_error"
        for header, value in (("x-api-key", "{}"), ("authorization", "Bearer {}")):
            http.headers = httpx.Headers({header: value.format(people.tokens["ann"])})
            assert (await ask(http)).status_code == 200


async def test_a_stream_that_breaks_ends_with_an_error_event(
    cell: FakeCell, http: httpx.AsyncClient
) -> None:
    cell.failure, cell.fail_at = ReplicaLost("the replica is gone; retry"), 2
    reply = await ask(http, stream=True)
    assert "event: error\n" in reply.text
    last = events_of(reply)[-1]
    assert last["error"] == {"type": "overloaded_error", "message": "the replica is gone; retry"}
    assert last["request_id"] == "r1"


async def test_an_answer_without_an_end_is_an_error(
    cell: FakeCell, http: httpx.AsyncClient
) -> None:
    cell.cut_short = True
    assert (await ask(http)).status_code == 503
    assert events_of(await ask(http, stream=True))[-1]["type"] == "error"


@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_template_lacks_is_refused_by_our_name(
    cell: FakeCell, http: httpx.AsyncClient, stream: bool
) -> None:
    param = "chat_template_kwargs.enable_thinking"
    cell.failure = UnsupportedParameter(f"{param} is not supported", param=param)
    thinking = {"type": "enabled", "budget_tokens": 2}
    reply = await ask(http, thinking=thinking, stream=stream)
    assert reply.status_code == 400
    assert reply.json()["error"]["message"].startswith("thinking is not supported: this model's")
    body = {"model": "smollm2", "messages": BODY["messages"], "thinking": thinking}
    counted = await http.post("/v1/messages/count_tokens", json=body)
    assert counted.json()["error"]["message"].startswith("thinking is not supported")
