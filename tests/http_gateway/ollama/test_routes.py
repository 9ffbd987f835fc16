"""Ollama's routes of a gateway before a cell whose answers can be worked out by hand."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from http_gateway.app import create_app
from http_gateway.config import GatewayConfig
from sax.errors import ReplicaLost, UnsupportedParameter
from sax.types import AnswerFormat, GenerateRequest, Message, TokenChunk, TokenLogprob
from tests.each_case import each_case
from tests.http_gateway.conftest import Connect
from tests.http_gateway.fake_cell import FakeCell, published

CHAT: dict[str, Any] = {"model": "smollm2:latest", "messages": [{"role": "user", "content": "Hi"}]}
TEXT: dict[str, Any] = {"model": "smollm2", "prompt": "Hi"}
TOOL = {"type": "function", "function": {"name": "f"}}


def lines_of(reply: httpx.Response) -> list[dict[str, Any]]:
    assert reply.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in reply.text.splitlines()]


async def test_a_chat_is_streamed_by_default(cell: FakeCell, http: httpx.AsyncClient) -> None:
    lines = lines_of(await http.post("/api/chat", json=CHAT))
    assert "".join(line["message"]["content"] for line in lines) == " 2 3 4 5 6"
    assert {line["model"] for line in lines} == {"smollm2:latest"}
    last = lines[-1]
    assert (last["done"], last["done_reason"], last["eval_count"]) == (True, "stop", 5)
    assert last["total_duration"] >= last["eval_duration"] >= 0
    assert cell.requests[0].model_id == "/sax/test/smollm2"


async def test_a_chat_may_come_whole(cell: FakeCell, http: httpx.AsyncClient) -> None:
    options = {"num_predict": 3}
    reply = await http.post("/api/chat", json={**CHAT, "stream": False, "options": options})
    body = reply.json()
    assert body["message"] == {"role": "assistant", "content": " 2 3 4"}
    assert (body["done_reason"], body["prompt_eval_count"]) == ("length", 2)


async def test_calls_come_whole(cell: FakeCell, http: httpx.AsyncClient) -> None:
    pieces = ['<tool_call>{"name": "f", "argu', 'ments": {"a": 1}}</tool_call>']
    cell.said = [
        TokenChunk(pieces[0], (1,), answer_format=AnswerFormat("hermes"), prompt_tokens=3),
        TokenChunk(pieces[1], (2,)),
        TokenChunk("", (), finish_reason="stop", completion_tokens=2),
    ]
    call, last = lines_of(await http.post("/api/chat", json={**CHAT, "tools": [TOOL]}))
    (told,) = call["message"]["tool_calls"]
    assert told["function"] == {"name": "f", "arguments": {"a": 1}, "index": 0}
    assert last["done_reason"] == "stop"


async def test_a_prompt_is_answered(cell: FakeCell, http: httpx.AsyncClient) -> None:
    lines = lines_of(await http.post("/api/generate", json=TEXT))
    assert "".join(line["response"] for line in lines) == " 2 3 4 5 6"
    raw = await http.post("/api/generate", json={**TEXT, "raw": True, "stream": False})
    assert raw.json()["response"] == " 2 3 4 5 6"
    assert [request.prompt for request in cell.requests] == [(Message("user", "Hi"),), "Hi"]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [("/api/chat", {"model": "smollm2", "messages": []}, "message"),
     ("/api/chat", {"model": "smollm2"}, "message"),
     ("/api/generate", {"model": "smollm2"}, "response")],
)  # fmt: skip
async def test_without_a_prompt_a_model_is_loaded(
    cell: FakeCell, http: httpx.AsyncClient, path: str, body: dict[str, Any], field: str
) -> None:
    (line,) = lines_of(await http.post(path, json=body))
    assert (line["done"], line["done_reason"]) == (True, "load")
    assert field in line
    whole = await http.post(path, json={**body, "stream": False})
    assert whole.json()["done_reason"] == "load"
    cell.models["/sax/test/smollm2"] = published(ready=0, replicas=1, reason="reads weights")
    refused = await http.post(path, json=body)
    assert refused.status_code == 503
    assert "reads weights" in refused.json()["error"]
    assert not cell.requests


async def test_texts_are_embedded(cell: FakeCell, http: httpx.AsyncClient) -> None:
    reply = await http.post("/api/embed", json={"model": "smollm2", "input": ["a", "bcd"]})
    assert reply.json()["embeddings"] == [[1.0, 0.5, -0.25], [3.0, 0.5, -0.25]]
    assert reply.json()["prompt_eval_count"] == 4
    short = {"model": "smollm2", "input": "ab", "dimensions": 2}
    assert (await http.post("/api/embed", json=short)).json()["embeddings"] == [[2.0, 0.5]]
    none = await http.post("/api/embed", json={"model": "smollm2", "input": []})
    assert none.json()["embeddings"] == []
    old = await http.post("/api/embeddings", json={"model": "smollm2", "prompt": "ab"})
    assert old.json() == {"embedding": [2.0, 0.5, -0.25]}


@each_case(
    "fields, status, word",
    [
        ({"top_logprobs": 99}, 400, "top_logprobs"),
        ({"options": {"mirostat": 2}}, 400, "options.mirostat"),
        ({"stream": "yes"}, 400, "stream"),
        ({"messages": [{"role": "user", "content": 3}]}, 400, "content"),
        ({"model": "none"}, 404, "none"),
    ],
)
async def test_an_error_is_a_text(
    fields: dict[str, Any], status: int, word: str, http: httpx.AsyncClient
) -> None:
    reply = await http.post("/api/chat", json={**CHAT, **fields})
    assert reply.status_code == status
    assert [*reply.json()] == ["error"]
    assert word in reply.json()["error"]


async def test_errors_of_every_layer_are_texts(cell: FakeCell, connect: Connect) -> None:
    http = connect(GatewayConfig(max_body_bytes=100))
    large = await http.post("/api/generate", json={**TEXT, "system": "x" * 200})
    assert (large.status_code, [*large.json()]) == (413, ["error"])
    missing = await http.get("/api/blobs/sha256:0")
    assert (missing.status_code, [*missing.json()]) == (404, ["error"])
    cell.failure = ReplicaLost("gone")
    lost = await http.post("/api/generate", json=TEXT)
    assert (lost.status_code, lost.json()) == (503, {"error": "gone"})


async def test_a_stream_that_breaks_ends_with_an_error(
    cell: FakeCell, http: httpx.AsyncClient
) -> None:
    cell.failure, cell.fail_at = ReplicaLost("the replica is gone; retry"), 2
    lines = lines_of(await http.post("/api/chat", json=CHAT))
    assert lines[-1] == {"error": "the replica is gone; retry"}


async def test_what_the_template_lacks_is_refused_by_our_name(
    cell: FakeCell, http: httpx.AsyncClient
) -> None:
    param = "chat_template_kwargs.enable_thinking"
    cell.failure = UnsupportedParameter(f"{param} is not supported", param=param)
    reply = await http.post("/api/chat", json={**CHAT, "think": True})
    assert reply.status_code == 400
    assert reply.json()["error"].startswith("think is not supported: this model's chat template")


async def test_what_is_not_known_is_ignored_and_named(
    cell: FakeCell, http: httpx.AsyncClient
) -> None:
    """As Ollama does; Vercel's provider sends max_output_tokens."""
    function = {"name": "f", "parameters": {"type": "object"}, "mood": 1}
    strange: dict[str, Any] = {
        "max_output_tokens": 8,
        "options": {"num_predict": 3, "mood": 1},
        "messages": [{"role": "user", "content": "Hi", "mood": 1}],
        "tools": [{"type": "function", "function": function, "mood": 1}],
    }
    reply = await http.post("/api/chat", json={**CHAT, "stream": False, **strange})
    assert reply.json()["message"]["content"] == " 2 3 4"
    ignored = reply.headers["x-sax-ignored-fields"].split(", ")
    assert set(ignored) == {
        "max_output_tokens",
        "options.mood",
        "messages[0].mood",
        "tools[0].mood",
        "tools[0].function.mood",
    }
    plain = await http.post("/api/chat", json=CHAT)
    assert "x-sax-ignored-fields" not in plain.headers


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
async def test_log_probabilities_come_with_their_text(
    path: str, cell: FakeCell, http: httpx.AsyncClient
) -> None:
    body = {**(CHAT if path == "/api/chat" else TEXT), "logprobs": True, "top_logprobs": 2}
    lines = lines_of(await http.post(path, json=body))
    told = [each for line in lines for each in line.get("logprobs", ())]
    assert [each["token"] for each in told] == [" 2", " 3", " 4", " 5", " 6"]
    assert told[0]["logprob"] == -0.25
    assert bytes(told[0]["bytes"]).decode() == " 2"
    assert [each["token"] for each in told[0]["top_logprobs"]] == [" 2", " 3"]
    whole = (await http.post(path, json={**body, "stream": False})).json()
    assert whole["logprobs"] == told
    assert "logprobs" not in (await http.post(path, json={**body, "logprobs": False})).text


async def test_log_probabilities_wait_for_their_text(
    cell: FakeCell, http: httpx.AsyncClient
) -> None:
    entry = TokenLogprob(1, "a", b"a", -0.5)
    cell.said = [
        TokenChunk("", (1,), (entry,)),
        TokenChunk("ab", (2,), (entry,)),
        TokenChunk("", (3,), (entry,), finish_reason="stop"),
    ]
    first, last = lines_of(await http.post("/api/chat", json={**CHAT, "logprobs": True}))
    assert (len(first["logprobs"]), len(last["logprobs"])) == (2, 1)


async def test_a_level_of_thinking_is_left_out_where_there_is_none() -> None:
    class Plain(FakeCell):
        async def generate_to(self, request: GenerateRequest, *more: Any, **named: Any) -> None:
            if "reasoning_effort" in request.chat.chat_template_kwargs:
                raise UnsupportedParameter("no effort", param="reasoning_effort")
            await super().generate_to(request, *more, **named)

    app = create_app(Plain(published("/sax/test/smollm2")), GatewayConfig())
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as plain:
        reply = await plain.post("/api/chat", json={**CHAT, "think": "high", "stream": False})
    assert reply.status_code == 200
