"""HEAD on every route of GET."""

from __future__ import annotations

from typing import Any

import httpx

from http_gateway.app import create_app
from http_gateway.config import GatewayConfig
from sax.storage.object_store import open_store
from tests.each_case import Failures
from tests.http_gateway.fake_cell import FakeCell, published


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
