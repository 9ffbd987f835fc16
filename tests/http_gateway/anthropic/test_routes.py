"""/v1/messages of a gateway before a cell whose answers can be worked out by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx

from http_gateway.anthropic.context_edits import CLEARED
from http_gateway.app import create_app
from http_gateway.config import GatewayConfig
from sax.auth.authentication import Authentication
from sax.auth.token_file import TokenFile
from sax.errors import PromptTooLong, QueueFull, ReplicaLost, UnsupportedParameter
from sax.types import PLAIN_CHAT, AnswerFormat, ChatOptions, GenerateRequest, TokenChunk
from tests.each_case import each_case
from tests.http_gateway.conftest import Connect
from tests.http_gateway.described import check
from tests.http_gateway.fake_cell import FakeCell, published
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
    ({"messages": [{"role": "user", "content": [{"type": "container_upload"}]}]}, 400,
     "invalid_request_error", "container_upload"),
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
    assert last["error"]["type"] == "overloaded_error"
    assert last["error"]["message"] == "the replica is gone; retry"
    assert last["request_id"] == "r1"


async def test_an_answer_without_an_end_is_an_error(
    cell: FakeCell, http: httpx.AsyncClient
) -> None:
    cell.cut_short = True
    assert (await ask(http)).status_code == 503
    assert events_of(await ask(http, stream=True))[-1]["type"] == "error"


class PlainTemplate(FakeCell):
    """A cell whose model's template has no variables: it refuses them one by one."""

    def _check(self, chat: ChatOptions) -> None:
        for name in json.loads(chat.chat_template_kwargs or "{}"):
            path = name if name == "reasoning_effort" else f"chat_template_kwargs.{name}"
            raise UnsupportedParameter(f"{path} is not supported", param=path)

    async def generate_to(self, request: GenerateRequest, *more: Any, **named: Any) -> None:
        self._check(request.chat)
        await super().generate_to(request, *more, **named)

    async def tokenize(self, *asked: Any, chat: ChatOptions = PLAIN_CHAT, **named: Any) -> Any:
        self._check(chat)
        return await super().tokenize(*asked, chat=chat, **named)


async def test_wishes_that_the_template_has_no_variable_for_are_left_out() -> None:
    cell = PlainTemplate(published())
    transport = httpx.ASGITransport(create_app(cell, GatewayConfig()))
    wishes: dict[str, Any] = {
        "thinking": {"type": "enabled", "budget_tokens": 2000},
        "output_config": {"effort": "high"},
    }
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        for stream in (False, True):
            reply = await ask(http, stream=stream, **wishes)
            assert reply.status_code == 200, reply.text
        body = {"model": "smollm2", "messages": BODY["messages"], **wishes}
        counted = await http.post("/v1/messages/count_tokens", json=body)
    assert counted.json() == {"input_tokens": 2}
    assert [request.chat for request in cell.requests] == [ChatOptions(divided=True)] * 2


async def test_another_refusal_of_the_cell_is_told(cell: FakeCell, http: httpx.AsyncClient) -> None:
    cell.failure = UnsupportedParameter("tools are not supported", param="tools")
    reply = await ask(http, output_config={"effort": "high"}, tools=[TOOL])
    assert (reply.status_code, "tools" in reply.text) == (400, True)


async def test_claude_codes_whole_request_is_answered(http: httpx.AsyncClient) -> None:
    cached = {"type": "ephemeral"}
    reply = await http.post("/v1/messages?beta=true", json={
        "model": "smollm2", "max_tokens": 32000, "stream": True,
        "metadata": {"user_id": '{"device_id": "d"}'},
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "system": [{"type": "text", "text": "You are brief.", "cache_control": cached}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": cached}]},
            {"role": "system", "content": "Available agents: none."},
        ],
        "tools": [{**TOOL, "name": f"mcp__{n:0123}"} for n in range(200)],
    })  # fmt: skip
    assert reply.status_code == 200
    assert events_of(reply)[-2]["context_management"] == {"applied_edits": []}


USED = {"type": "tool_use", "name": "f", "input": {"a": "1" * 9}}


def conversation(calls: int) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = [*BODY["messages"]]
    for n in range(calls):
        result = {"type": "tool_result", "tool_use_id": f"c{n}", "content": "r" * 100}
        said += [
            {"role": "assistant", "content": [{**USED, "id": f"c{n}"}]},
            {"role": "user", "content": [result]},
        ]
    return said


async def test_old_results_leave_a_prompt_that_has_grown(
    cell: FakeCell, http: httpx.AsyncClient
) -> None:
    edit = {
        "type": "clear_tool_uses_20250919",
        "trigger": {"type": "input_tokens", "value": 400},
        "keep": {"type": "tool_uses", "value": 2},
    }
    asked = {"context_management": {"edits": [edit]}, "tools": [TOOL]}
    short = (await ask(http, messages=conversation(3), **asked)).json()
    assert short["context_management"] == {"applied_edits": []}
    grown = (await ask(http, messages=conversation(5), **asked)).json()
    (applied,) = grown["context_management"]["applied_edits"]
    # The fake cell counts a token for each character of the contents.
    assert applied == {
        "type": "clear_tool_uses_20250919",
        "cleared_tool_uses": 3,
        "cleared_input_tokens": 3 * (100 - len(CLEARED)),
    }
    assert grown["usage"]["input_tokens"] == 2 + 2 * 100 + 3 * len(CLEARED)
    body = {"model": "smollm2", "messages": conversation(5), **asked}
    counted = (await http.post("/v1/messages/count_tokens", json=body)).json()
    assert counted == {
        "input_tokens": grown["usage"]["input_tokens"],
        "context_management": {"original_input_tokens": 502},
    }


async def test_a_compaction_is_refused_where_it_is_due(http: httpx.AsyncClient) -> None:
    def asked(value: int) -> dict[str, Any]:
        edit = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": value}}
        return {"context_management": {"edits": [edit]}}

    assert (await ask(http, **asked(2))).status_code == 200
    refused = await ask(http, **asked(1))
    assert refused.status_code == 400
    assert "context_management.edits[0].type compact_20260112" in refused.json()["error"]["message"]


async def test_a_thread_that_goes_on_is_not_known(http: httpx.AsyncClient) -> None:
    assert (await ask(http, thread={"type": "create"})).status_code == 200
    lost = await ask(http, thread={"type": "continue", "previous_message_id": "msg_1"})
    assert lost.status_code == 404
    assert lost.json()["error"]["details"] == {"error_code": "thread_not_found"}


async def test_a_full_context_is_told_in_the_words_that_agents_know(
    cell: FakeCell, http: httpx.AsyncClient
) -> None:
    cell.failure = PromptTooLong("the prompt has 9 tokens and the context holds 8")
    reply = await ask(http)
    assert reply.json()["error"]["message"].startswith("prompt is too long: the prompt has 9")


async def test_an_answer_that_the_context_cut_says_so(
    cell: FakeCell, http: httpx.AsyncClient
) -> None:
    cell.said = [TokenChunk("a", (1,), finish_reason="length", completion_tokens=1)]
    assert (await ask(http, max_tokens=2)).json()["stop_reason"] == "model_context_window_exceeded"
    assert (await ask(http, max_tokens=1)).json()["stop_reason"] == "max_tokens"
