"""The OpenAPI document tells bodies, queries, replies and errors of every route."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from http_gateway.openai.bodies import CHAT
from http_gateway.openai.passes.embeddings import EMBED
from http_gateway.openapi import OpenAiError, describe_operations, operation, schema_of
from http_gateway.saxml.schema import EventsQuery

REFUSED = ["/api/push"]
POSTS_WITHOUT_BODY = [
    "/ping",
    "/v1/responses/{response_id}/cancel",
    "/v1/batches/{batch_id}/cancel",
    *REFUSED,
]
SILENT = ["/health", "/ping", *REFUSED, "/api/copy", "/api/delete"]


@pytest.fixture
async def document(http: httpx.AsyncClient) -> dict[str, Any]:
    return (await http.get("/openapi.json")).json()


def test_a_described_body_holds_no_reference_and_the_bounds_of_its_rows() -> None:
    schema = CHAT.schema()
    assert "$ref" not in json.dumps(schema)
    fields = schema["properties"]
    turn = fields["messages"]["items"]["anyOf"][0]
    assert turn["required"] == ["role", "content"]
    assert fields["messages"]["maxItems"] == 4096
    assert fields["model"]["maxLength"] == 200
    assert fields["n"]["anyOf"][0]["maximum"] == 8
    assert fields["user"]["anyOf"][0]["maxLength"] == 512
    assert fields["safety_identifier"]["maxLength"] == 512
    assert fields["verbosity"]["enum"] == [None, "medium"]
    assert schema["additionalProperties"] is False


def test_a_prompt_may_be_given_in_four_ways() -> None:
    text, ids, many, *seen = EMBED.schema()["properties"]["input"]["anyOf"]
    assert (text["type"], ids["items"]["type"]) == ("string", "integer")
    assert many["items"]["anyOf"] == [text, ids]
    assert many["maxItems"] == 2048
    *_, mixed = seen  # texts and images
    assert mixed["items"]["anyOf"] == [text, *seen[:-1]]


def test_an_operation_tells_its_reply_errors_and_headers() -> None:
    told = operation({"type": "string"}, errors=OpenAiError, statuses=(429,), media_type="a/b")
    silent = operation()
    describe_operations()
    assert told["responses"][200]["content"] == {"a/b": {"schema": {"type": "string"}}}
    full = told["responses"][429]
    assert full["content"]["application/json"]["schema"] == schema_of(OpenAiError)
    assert set(full["headers"]) == {"retry-after", "x-request-id"}
    assert "content" not in silent["responses"][200]


async def test_every_post_and_put_tells_its_body(document: dict[str, Any]) -> None:
    silent = [
        path
        for path, methods in document["paths"].items()
        for method, told in methods.items()
        if method in ("post", "put") and "requestBody" not in told
    ]
    assert sorted(silent) == sorted(POSTS_WITHOUT_BODY)


async def test_every_operation_tells_its_reply_and_the_shape_of_its_errors(
    document: dict[str, Any],
) -> None:
    for path, methods in document["paths"].items():
        for method, told in methods.items():
            responses = told["responses"]
            assert {"200", "401", "500"} <= responses.keys() or path in SILENT
            if path not in SILENT:
                assert responses["200"]["content"], (method, path)
            for status, response in responses.items():
                for media in response.get("content", {}).values():
                    assert media.get("schema") or media.get("itemSchema"), (path, status)


async def test_streams_tell_the_type_of_their_events(document: dict[str, Any]) -> None:
    for path, name in (
        ("/v1/chat/completions", "ChatCompletionEvent"),
        ("/v1/completions", "CompletionEvent"),
    ):
        content = document["paths"][path]["post"]["responses"]["200"]["content"]
        data = content["text/event-stream"]["itemSchema"]["properties"]["data"]
        last, event = data["anyOf"]
        assert last == {"const": "[DONE]"}
        told = [each["$ref"].rpartition("/")[2] for each in event["contentSchema"]["anyOf"]]
        assert told == [name, "OpenAiError"]


async def test_a_stream_without_a_last_word_tells_every_event(document: dict[str, Any]) -> None:
    content = document["paths"]["/v1/messages"]["post"]["responses"]["200"]["content"]
    data = content["text/event-stream"]["itemSchema"]["properties"]["data"]
    (event,) = data["anyOf"]
    told = [each["$ref"].rpartition("/")[2] for each in event["contentSchema"]["anyOf"]]
    assert (told[0], told[-2:]) == ("MessageStart", ["MessageStop", "AnthropicError"])


async def test_every_reference_leads_to_a_component(document: dict[str, Any]) -> None:
    def references(node: object) -> set[str]:
        if isinstance(node, list):
            return {found for each in node for found in references(each)}
        if not isinstance(node, dict):
            return set()
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return own | {found for each in node.values() for found in references(each)}

    names = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references(document) <= names
    assert len(names) > 30


async def test_the_document_tells_the_query_of_events(document: dict[str, Any]) -> None:
    told = {one["name"]: one for one in document["paths"]["/events"]["get"]["parameters"]}
    assert set(told) == set(EventsQuery.model_fields)
    assert told["limit"]["schema"]["maximum"] == 1000
    assert not told["model"]["required"]
