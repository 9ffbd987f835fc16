"""Models as Ollama's clients list and show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import httpx
import pytest

from sax.errors import InvalidRequest
from sax.types import PLAIN_CHAT, ChatOptions, Message
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
        "general.basename": "smollm2",
        "llama.context_length": CONTEXT,
    }
    embeds = (await http.post("/api/show", json={"name": "minilm:latest"})).json()
    assert embeds["capabilities"] == ["embedding"]
    assert (await http.post("/api/show", json={"model": "none"})).status_code == 404
    assert (await http.post("/api/show", json={})).status_code == 400


async def test_the_version_is_one_that_clients_accept(http: httpx.AsyncClient) -> None:
    told = (await http.get("/api/version")).json()
    assert tuple(map(int, told["version"].split("."))) >= (0, 6, 4)
    assert told["server"] == f"sax {(await http.get('/version')).json()['version']}"


async def test_a_model_tells_when_it_was_published_and_its_context(
    cell: FakeCell, http: httpx.AsyncClient
) -> None:
    model = cell.models["/sax/test/smollm2"]
    cell.models["/sax/test/smollm2"] = replace(model, published_at_s=1e9, max_context=512)
    (first, *_) = (await http.get("/api/ps")).json()["models"]
    assert first["modified_at"] == "2001-09-09T01:46:40Z"
    assert first["context_length"] == 512
