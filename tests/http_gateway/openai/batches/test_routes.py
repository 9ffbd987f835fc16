"""Batches from the upload to the output file, in one process over the fake cell."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from http_gateway.app import create_app
from http_gateway.config import GatewayConfig
from sax.chat import Image, Message
from sax.fields.sampling import MOST_PRIORITY
from sax.storage.object_store import ObjectStore, open_store
from tests.each_case import each_case
from tests.http_gateway.described import CheckingClient
from tests.http_gateway.fake_cell import FakeCell
from tests.http_gateway.openai.batches.asked import (
    CHAT,
    chat,
    ended,
    lines_in,
    quick,
    start,
    upload,
)


@pytest.fixture
def store() -> ObjectStore:
    return open_store("memory://")


@pytest.fixture
async def http(cell: FakeCell, store: ObjectStore) -> AsyncIterator[httpx.AsyncClient]:
    """A gateway that runs batches."""
    app = quick(create_app(cell, GatewayConfig(), store=store))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.state.batches.running(),
        CheckingClient(2, transport=transport, base_url="http://gateway") as client,
    ):
        yield client


@pytest.mark.extended
async def test_a_batch_answers_every_line(cell: FakeCell, http: httpx.AsyncClient):
    lines = [chat(f"line {n}", "x" * (n + 1)) for n in range(150)]
    begun = await start(http, lines, metadata={"of": "me"})
    assert begun["status"] in ("validating", "in_progress")
    batch = await ended(http, begun["id"])
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": 150, "completed": 150, "failed": 0}
    assert batch["metadata"] == {"of": "me"}
    assert batch["error_file_id"] is None
    for name in ("in_progress_at", "finalizing_at", "completed_at"):
        assert batch[name] is not None
    answers = await lines_in(http, batch["output_file_id"])
    assert len(answers) == 150
    for n in range(150):
        response = answers[f"line {n}"]["response"]
        assert response["status_code"] == 200
        told = response["body"]["choices"][0]["message"]["content"]
        assert told.startswith(f" {n + 1} ")
    assert {asked.priority for asked in cell.requests} == {MOST_PRIORITY}
    assert len(cell.requests) == 150
    file = (await http.get(f"/v1/files/{batch['output_file_id']}")).json()
    assert file["purpose"] == "batch_output"


@pytest.mark.parametrize(
    ("endpoint", "body", "path"),
    [
        ("/v1/completions", {"prompt": "abcd"}, ("choices", 0, "text")),
        ("/v1/embeddings", {"input": "abcd"}, ("data", 0, "embedding")),
        ("/v1/responses", {"input": "abcd"}, ("output", 0, "content", 0, "text")),
    ],
)
async def test_every_endpoint_has_batches(
    http: httpx.AsyncClient, endpoint: str, body: dict[str, Any], path: tuple[Any, ...]
):
    line = {"custom_id": "a", "method": "POST", "url": endpoint}
    lines = [{**line, "body": {"model": "smollm2", **body}}]
    batch = await ended(http, (await start(http, lines, endpoint))["id"])
    told = (await lines_in(http, batch["output_file_id"]))["a"]["response"]["body"]
    for part in path:
        told = told[part]
    assert told == ([4.0, 0.5, -0.25] if "embed" in endpoint else " 4 5 6 7 8")


async def test_a_line_may_hold_an_image(http: httpx.AsyncClient, cell: FakeCell):
    parts = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}]
    lines = [chat("a", messages=[{"role": "user", "content": parts}])]
    batch = await ended(http, (await start(http, lines))["id"])
    assert batch["request_counts"] == {"total": 1, "completed": 1, "failed": 0}
    image = Image(b"hi", "messages[0].content[0]")
    assert cell.requests[0].prompt == (Message("user", (image,)),)


async def test_a_bad_request_is_an_error_of_its_line(http: httpx.AsyncClient):
    lines = [chat("good"), chat("bad", nope=1), chat("lost", model="nothing")]
    batch = await ended(http, (await start(http, lines))["id"])
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": 3, "completed": 1, "failed": 2}
    errors = await lines_in(http, batch["error_file_id"])
    assert errors["bad"]["response"]["status_code"] == 400
    assert errors["bad"]["response"]["body"]["error"]["param"] == "nope"
    assert errors["lost"]["response"]["status_code"] == 404
    assert [*await lines_in(http, batch["output_file_id"])] == ["good"]


@pytest.mark.extended
@each_case(
    "lines, code, line, param",
    [
        ([], "empty_file", None, None),
        ([b"\n\n"], "empty_file", None, None),
        ([chat("a"), b"{\n"], "invalid_json_line", 2, None),
        ([b"[]\n"], "invalid_request", 1, None),
        ([chat("a"), b"\n", chat("a")], "duplicate_custom_id", 3, "custom_id"),
        ([{**chat("a"), "custom_id": ""}], "missing_custom_id", 1, "custom_id"),
        ([{**chat("a"), "method": "GET"}], "invalid_method", 1, "method"),
        ([{**chat("a"), "url": "/v1/embeddings"}], "invalid_url", 1, "url"),
        ([{**chat("a"), "body": 1}], "invalid_body", 1, "body"),
        ([{**chat("a"), "nope": 1}], "unknown_field", 1, "nope"),
        ([chat("a", stream=True)], "invalid_body", 1, "body.stream"),
        ([chat("a", priority=1)], "invalid_body", 1, "body.priority"),
    ],
)
async def test_a_file_that_is_wrong_fails_the_batch_and_names_the_line(
    lines: list[Any],
    code: str,
    line: int | None,
    param: str | None,
    cell: FakeCell,
    http: httpx.AsyncClient,
):
    batch = await ended(http, (await start(http, lines))["id"])
    assert batch["status"] == "failed"
    (error,) = batch["errors"]["data"]
    assert (error["code"], error["line"], error["param"]) == (code, line, param)
    assert not cell.requests
    assert batch["output_file_id"] is None


async def test_batches_are_listed_the_newest_first(http: httpx.AsyncClient):
    ids = {(await start(http, [chat("a")]))["id"] for _ in range(3)}
    listed = (await http.get("/v1/batches?limit=2")).json()
    assert listed["has_more"]
    rest = (await http.get(f"/v1/batches?after={listed['last_id']}")).json()
    assert {batch["id"] for batch in (*listed["data"], *rest["data"])} == ids


@each_case(
    "field, status, param",
    [
        ({"input_file_id": "file-1"}, 404, "input_file_id"),
        ({"endpoint": "/v1/models"}, 400, "endpoint"),
        ({"completion_window": "24d"}, 400, "completion_window"),
        ({"completion_window": "169h"}, 400, "completion_window"),
        ({"output_expires_after": {"anchor": "x", "seconds": 1}}, 400, "output_expires_after"),
        (
            {"output_expires_after": {"anchor": "created_at", "seconds": 1}},
            400,
            "output_expires_after.seconds",
        ),
        ({"nope": 1}, 400, "nope"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(
    field: dict[str, Any], status: int, param: str, http: httpx.AsyncClient
):
    body = {"input_file_id": await upload(http, [chat("a")]), "endpoint": CHAT}
    reply = await http.post("/v1/batches", json={"completion_window": "24h", **body, **field})
    assert (reply.status_code, reply.json()["error"]["param"]) == (status, param)


async def test_the_output_may_have_a_time_to_live(http: httpx.AsyncClient):
    expiry = {"anchor": "created_at", "seconds": 3600}
    batch = await ended(http, (await start(http, [chat("a")], output_expires_after=expiry))["id"])
    file = (await http.get(f"/v1/files/{batch['output_file_id']}")).json()
    assert file["expires_at"] == file["created_at"] + 3600


async def test_an_output_file_is_no_input(http: httpx.AsyncClient):
    batch = await ended(http, (await start(http, [chat("a")]))["id"])
    body = {"input_file_id": batch["output_file_id"], "endpoint": CHAT}
    reply = await http.post("/v1/batches", json={"completion_window": "24h", **body})
    assert reply.json()["error"]["param"] == "input_file_id"


async def test_without_a_store_the_flag_is_named(connect: Callable[..., httpx.AsyncClient]):
    http = connect(GatewayConfig())
    body = {"input_file_id": "x", "endpoint": CHAT, "completion_window": "24h"}
    for reply in (await http.post("/v1/batches", json=body), await http.get("/v1/batches")):
        assert reply.status_code == 400
        assert "--files" in reply.json()["error"]["message"]
