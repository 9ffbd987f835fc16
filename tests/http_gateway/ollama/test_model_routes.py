"""Models as Ollama's clients list and show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import httpx
import pytest

from sax.errors import InvalidRequest
from sax.types import PLAIN_CHAT, ChatOptions, Message
from tests.each_case import each_case
from tests.http_gateway.fake_cell import CONTEXT, FakeCell, published


class Toolless(FakeCell):
    """Its models' templates have thinking, and no tools."""

    async def tokenize(
        self,
        model_id: str,
        prompt: str | tuple[Message, ...],
        timeout_s: float | None = None,
        *,
        add_special_tokens: bool | None = None,
        chat: ChatOptions = PLAIN_CHAT,
    ) -> tuple[Sequence[int], int]:
        if chat.tools:
            raise InvalidRequest("no tools", param="tools")
        return await super().tokenize(model_id, prompt, timeout_s, chat=chat)


@pytest.fixture
def cell() -> FakeCell:
    generates = replace(published("/sax/test/smollm2"), methods=("lm.generate", "lm.score"))
    embeds = replace(published("/sax/test/minilm"), methods=("lm.embed",))
    cold = published("/sax/test/cold", ready=0, replicas=1)
    twins = (published("/sax/a/twin"), published("/sax/b/twin"))
    return Toolless(generates, embeds, cold, *twins)


async def test_published_models_are_listed_by_their_tagged_names(http: httpx.AsyncClient) -> None:
    models = (await http.get("/api/tags")).json()["models"]
    assert [model["name"] for model in models] == [
        "smollm2:latest",
        "minilm:latest",
        "cold:latest",
        "/sax/a/twin:latest",
        "/sax/b/twin:latest",
    ]
    assert models[0]["model"] == "smollm2:latest"
    assert models[0]["details"]["family"] == "llama"


async def test_every_listed_name_is_known(http: httpx.AsyncClient) -> None:
    for model in (await http.get("/api/tags")).json()["models"]:
        assert (await http.post("/api/show", json={"model": model["name"]})).status_code == 200


async def test_ready_models_are_running(http: httpx.AsyncClient) -> None:
    models = (await http.get("/api/ps")).json()["models"]
    assert "cold:latest" not in [model["name"] for model in models]
    assert len(models) == 4
    assert models[0]["expires_at"].startswith("9999")


async def test_a_models_capabilities_are_asked_of_it(http: httpx.AsyncClient) -> None:
    shown = (await http.post("/api/show", json={"model": "smollm2"})).json()
    assert shown["capabilities"] == ["completion", "thinking", "vision"]
    assert shown["model_info"] == {
        "general.architecture": "llama",
        "llama.context_length": CONTEXT,
    }
    embeds = (await http.post("/api/show", json={"name": "minilm:latest"})).json()
    assert embeds["capabilities"] == ["embedding"]
    assert (await http.post("/api/show", json={"model": "none"})).status_code == 404
    assert (await http.post("/api/show", json={})).status_code == 400


async def test_the_version_is_that_of_sax(http: httpx.AsyncClient) -> None:
    assert (await http.get("/api/version")).json() == (await http.get("/version")).json()


@each_case(
    "method, path, command",
    [
        ("POST", "/api/pull", "sax publish"),
        ("POST", "/api/push", "sax convert"),
        ("POST", "/api/create", "sax publish"),
        ("POST", "/api/copy", "sax publish"),
        ("DELETE", "/api/delete", "sax unpublish"),
    ],
)
async def test_a_change_is_refused_with_the_command_that_makes_it(
    method: str, path: str, command: str, http: httpx.AsyncClient
) -> None:
    reply = await http.request(method, path, json={"model": "m"})
    assert reply.status_code == 400
    assert command in reply.json()["error"]
