"""/docs: sentences, examples that its own schemas take, and forms; no program in the page."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any, cast

import httpx
import pytest

from http_gateway.api_description import example_of, example_of_body, operations
from http_gateway.app import create_app
from http_gateway.cell_client import CellClient
from http_gateway.config import GatewayConfig
from http_gateway.docs_page import page
from sax.auth.authentication import Authentication
from sax.auth.token_file import TokenFile
from tests.each_case import Failures


@cache
def document() -> dict[str, Any]:
    return create_app(cast("CellClient", None), GatewayConfig()).openapi()


def test_every_body_that_is_offered_is_one_that_its_schema_takes() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    failures = Failures()
    for each in operations(document()):
        if each.example is None or each.is_form:
            continue
        told = document()["paths"][each.path][each.method.lower()]["requestBody"]
        with failures.of(each.method, each.path):
            sent = json.loads(json.dumps(each.example).replace("MODEL", "/sax/test/m"))
            jsonschema.validate(sent, told["content"]["application/json"]["schema"])
    failures.end()


def test_an_example_has_what_is_required_and_asks_for_a_stream_where_there_is_one() -> None:
    schema = {
        "properties": {"model": {"type": "string"}, "prompt": {"type": "string"}, "stream": {}},
        "required": ["model"],
    }
    assert example_of_body(schema, False).keys() == {"model", "prompt"}
    assert example_of_body(schema, True)["stream"] is True
    assert example_of({"type": "array", "items": {"type": "integer", "minimum": 3}}) == [3]
    assert example_of({"anyOf": [{"const": "x"}, {"type": "string"}]}) == "x"


def test_every_route_has_a_form_and_all_texts_are_sentences() -> None:
    text = page(document())
    shown = [*operations(document())]
    assert text.count('<form class="try"') == len(shown)
    assert all(f'data-path="{each.path}"' in text for each in shown)
    meanings = re.findall(r"<td>([^<]*)</td></tr>", text)
    wrong = [
        each for each in meanings if each and not re.match(r"[^a-z].*[.!?:]$", each, re.DOTALL)
    ]
    assert not wrong
    for landmark in ("<header", "<nav", "<main", 'role="search"', "<h1>", 'lang="en"'):
        assert landmark in text


def test_the_page_has_no_program_of_its_own() -> None:
    """Its policy forbids one: scripts and styles come from files only."""
    text = page(document())
    assert not re.search(
        r"<script(?! (type=\"module\" )?src=\"docs/)|<style|\son\w+=| style=", text
    )


async def test_the_page_and_its_files_need_no_key_and_hold_no_data() -> None:
    asks = Authentication(TokenFile("/dev/null"))
    app = create_app(cast("CellClient", None), GatewayConfig(), asks)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        read = await http.get("/docs")
        assert read.status_code == 200
        assert "script-src 'self'" in read.headers["content-security-policy"]
        for name in ("docs.js", "docs.css", "element.js", "look.css", "theme.js", "icon.svg"):
            assert (await http.get(f"/docs/{name}")).status_code == 200, name
        assert (await http.get("/docs/nothing.js")).status_code == 404
        assert (await http.post("/docs")).status_code == 401
        assert (await http.get("/openapi.json")).status_code == 401
