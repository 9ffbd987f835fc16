"""docs/reference/api.md is what the application describes, and /docs shows the same offline."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from http_gateway.api_description import bounds_of, kind_of
from http_gateway.api_page import page
from http_gateway.openai.schema import ChatRequest


def test_the_page_is_current() -> None:
    written = Path(__file__).parents[2] / "docs" / "reference" / "api.md"
    assert written.read_text() == page(), "run 'make docs'"


@pytest.mark.extended
async def test_the_page_has_every_route_and_every_field_of_a_chat(http: httpx.AsyncClient) -> None:
    made = page()
    for path, methods in (await http.get("/openapi.json")).json()["paths"].items():
        assert all(f"## {method.upper()} {path}\n" in made for method in methods)
    chat = made.partition("## POST /v1/chat/completions\n")[2].partition("\n## ")[0]
    assert [name for name in ChatRequest.model_fields if f"| `{name}` |" not in chat] == []
    assert "| `n` |  | whole number | 1 to 8 |" in chat
    assert "server-sent events" in chat


async def test_the_docs_load_nothing_from_elsewhere(http: httpx.AsyncClient) -> None:
    reply = await http.get("/docs")
    assert reply.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    links = set(re.findall(r'(?:src|href)="([^"]*)"', reply.text))
    assert all(link.startswith(("docs/", "#")) for link in links - {"openapi.json"})
    assert "/v1/chat/completions" in reply.text
    assert "max_completion_tokens" in reply.text


def test_a_schema_is_told_in_words() -> None:
    one_or_more = {"anyOf": [{"type": "string", "maxLength": 5}, {"type": "null"}]}
    assert (kind_of(one_or_more), bounds_of(one_or_more)) == ("text", "at most 5 characters")
    entries = {"type": "array", "maxItems": 1, "items": {"type": "integer", "minimum": 0}}
    assert kind_of(entries) == "list of whole numbers"
    assert bounds_of(entries) == "at most 1 entry; each 0 or more"
    assert bounds_of({"type": "number", "exclusiveMinimum": 0, "maximum": 1.0}) == (
        "above 0, at most 1"
    )
    assert kind_of({"enum": [None, "a", 1]}) == '"a" or 1'
    assert kind_of({"enum": [None]}) == "null"
    assert kind_of({"type": ["boolean", "null"]}) == "true or false"
