"""Ollama's pull, create, copy and delete: off, and as changes of the cell."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from http_gateway.config import GatewayConfig
from sax.types import PublishedModel, ReplicaStatus, ServableStatus
from tests.each_case import each_case
from tests.http_gateway.conftest import Connect
from tests.http_gateway.fake_cell import FakeCell, published

HUB = "hf.co/Org/Qwen3-0.6B"
NEW = "/sax/test/qwen3-0-6b"


class Loading(FakeCell):
    """A model is loading when it is listed first, and then as `ends` says."""

    ends = ServableStatus.LOADED

    async def list(self, model_id: str) -> PublishedModel:
        model = await super().list(model_id)
        if not model.replicas:
            loading = ReplicaStatus("127.0.0.1:9", ServableStatus.LOADING, "reading weights")
            self.models[model_id] = replace(model, replicas=(loading,))
        elif model.replicas[0].status is ServableStatus.LOADING:
            ended = replace(model.replicas[0], status=self.ends, reason="no room")
            self.models[model_id] = replace(model, replicas=(ended,))
            return model
        return self.models[model_id]


@pytest.fixture
def cell() -> FakeCell:
    spec = replace(published("/sax/test/smollm2").spec, overrides={"QUANTIZE": '"int8"'})
    return Loading(replace(published("/sax/test/smollm2"), spec=spec))


@pytest.fixture
def changing(connect: Connect) -> httpx.AsyncClient:
    return connect(GatewayConfig(ollama_changes=True))


def statuses(reply: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line) for line in reply.text.splitlines()]


async def test_a_pull_of_a_served_model_succeeds(http: httpx.AsyncClient) -> None:
    for name in ({"model": "smollm2"}, {"name": "smollm2:latest"}):
        whole = await http.post("/api/pull", json={**name, "stream": False})
        assert (whole.status_code, whole.json()) == (200, {"status": "success"})
        streamed = await http.post("/api/pull", json={**name, "insecure": True})
        assert statuses(streamed) == [{"status": "success"}]


@each_case(
    "method, path, body, command",
    [
        ("POST", "/api/pull", {"model": HUB}, "sax publish"),
        ("POST", "/api/create", {"model": "m", "from": "smollm2"}, "sax publish"),
        ("POST", "/api/copy", {"source": "smollm2", "destination": "m"}, "sax publish"),
        ("DELETE", "/api/delete", {"model": "smollm2"}, "sax unpublish"),
    ],
)
async def test_a_change_that_is_off_names_the_flag_and_the_command(
    method: str, path: str, body: dict[str, Any], command: str, http: httpx.AsyncClient
) -> None:
    reply = await http.request(method, path, json=body)
    assert reply.status_code == 400
    assert "--ollama_changes" in reply.json()["error"]
    assert command in reply.json()["error"]


async def test_a_push_is_refused_with_the_command_to_use(changing: httpx.AsyncClient) -> None:
    reply = await changing.post("/api/push", json={"model": "m"})
    assert (reply.status_code, "sax convert" in reply.json()["error"]) == (400, True)


async def test_a_pull_publishes_a_repository_and_waits_for_it(
    cell: FakeCell, changing: httpx.AsyncClient
) -> None:
    reply = await changing.post("/api/pull", json={"model": HUB})
    told = [line["status"] for line in statuses(reply)]
    assert told == ["loading: reading weights", "success"]
    spec = cell.models[NEW].spec
    assert (spec.model_path, spec.checkpoint) == ("auto", "hf://Org/Qwen3-0.6B")
    asked = {"model": HUB, "messages": [{"role": "user", "content": "Hi"}], "stream": False}
    assert (await changing.post("/api/chat", json=asked)).status_code == 200


async def test_a_pull_that_fails_says_why(cell: FakeCell, changing: httpx.AsyncClient) -> None:
    assert isinstance(cell, Loading)
    cell.ends = ServableStatus.FAILED
    reply = await changing.post("/api/pull", json={"model": HUB})
    assert "no room" in statuses(reply)[-1]["error"]
    registry = await changing.post("/api/pull", json={"model": "llama3.2"})
    assert (registry.status_code, "hf.co/ORG/NAME" in registry.json()["error"]) == (400, True)


async def test_a_copy_has_the_same_checkpoint_and_overrides(
    cell: FakeCell, changing: httpx.AsyncClient
) -> None:
    copied = await changing.post(
        "/api/copy", json={"source": "smollm2", "destination": "smollm2:backup"}
    )
    assert (copied.status_code, copied.content) == (200, b"")
    source, copy = (
        cell.models["/sax/test/smollm2"].spec,
        cell.models["/sax/test/smollm2-backup"].spec,
    )
    assert (copy.checkpoint, copy.overrides) == (source.checkpoint, {"QUANTIZE": '"int8"'})
    body = {"model": "mario", "from": "smollm2", "stream": False}
    assert (await changing.post("/api/create", json=body)).json() == {"status": "success"}
    assert cell.models["/sax/test/mario"].spec.overrides == source.overrides
    again = await changing.post("/api/create", json=body)
    assert (again.status_code, "error" in again.json()) == (409, True)


@each_case("fields", [{"system": "Be Mario."}, {"quantize": "q4_K_M"}, {"files": {"a": "b"}}])
async def test_a_create_is_refused_for_what_a_publication_has_not(
    fields: dict[str, Any], changing: httpx.AsyncClient
) -> None:
    body = {"model": "mario", "from": "smollm2", **fields}
    reply = await changing.post("/api/create", json=body)
    assert (reply.status_code, next(iter(fields)) in reply.json()["error"]) == (400, True)


async def test_a_deleted_model_is_gone(cell: FakeCell, changing: httpx.AsyncClient) -> None:
    for status in (200, 404):
        reply = await changing.request("DELETE", "/api/delete", json={"model": "smollm2"})
        assert reply.status_code == status
    assert cell.models == {}
