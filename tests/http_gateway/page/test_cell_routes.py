"""/cell: what each caller sees of the cell, and what it says while the admin is away."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from http_gateway.app import create_app
from http_gateway.config import GatewayConfig
from sax.activity import Activity
from sax.auth.authentication import Authentication
from sax.auth.credentials import presented_token
from sax.auth.key_limits import KeyLimits
from sax.auth.token_file import TokenFile, token_line
from sax.errors import AdminUnavailable, Unauthenticated
from sax.types import (
    JoinedServer,
    Overview,
    Progress,
    Rights,
    ServableInfo,
    ServableStatus,
    ServerInfo,
    Traffic,
)
from tests.each_case import each_case
from tests.http_gateway.fake_cell import FakeCell, published

SMOLLM2, LLAMA = "/sax/test/smollm2", "/sax/test/llama"
ACTIVITY = Activity(slots=8, slots_used=2, pages=100, pages_used=25, generated_tokens=7)


def server(*models: str) -> JoinedServer:
    held = tuple(
        ServableInfo(
            model_id=model,
            status=ServableStatus.LOADED,
            queued=3,
            running=2,
            activity=ACTIVITY,
        )
        for model in models
    )
    info = ServerInfo(address="127.0.0.1:7", memory_total=100, tags=("a",))
    return JoinedServer(info, 0.0, held, 60, traffic=Traffic(4, 0.0, 1.5, 0.25))


async def test_models_replicas_and_servers_are_told_with_their_figures(
    cell: FakeCell, http: httpx.AsyncClient
) -> None:
    cell.servers = (server(SMOLLM2),)
    told = (await http.get("/cell")).json()
    assert (told["cell"], told["admin"], told["may_publish"]) == ("/sax/test", "ok", True)
    assert [one["model"] for one in told["models"]] == [SMOLLM2, LLAMA]
    (replica,) = told["models"][0]["replicas"]
    assert (replica["address"], replica["status"]) == ("127.0.0.1:1", "loaded")
    (one,) = told["servers"]
    assert (one["memory_used"], one["successes_per_second"], one["mean_latency_s"]) == (
        60,
        1.5,
        0.25,
    )
    (held,) = one["servables"]
    assert (held["queued"], held["running"]) == (3, 2)
    assert held["activity"]["pages_used"] / held["activity"]["pages"] == 0.25
    assert held["activity"]["generated_tokens"] == 7


async def test_a_replica_that_loads_tells_its_phase(
    cell: FakeCell, http: httpx.AsyncClient
) -> None:
    model = published(SMOLLM2, ready=0, reason="compiling")
    loading = replace(model.replicas[0], progress=Progress("compiling bucket", 3, 8))
    cell.models = {SMOLLM2: replace(model, replicas=(loading,))}
    (told,) = (await http.get("/cell")).json()["models"]
    assert told["replicas"][0]["progress"] == {
        "phase": "compiling bucket",
        "done": 3,
        "total": 8,
        "unit": "",
    }


async def test_viewers_share_one_look_a_second(cell: FakeCell, http: httpx.AsyncClient) -> None:
    replies = [(await http.get("/cell")).json()["seen_at_s"] for _ in range(3)]
    assert cell.lists <= len({*replies})


@pytest.mark.extended
async def test_the_last_look_stands_while_the_admin_is_away(cell: FakeCell) -> None:
    http = gateway(cell)
    assert (await http.get("/cell")).json()["admin"] == "ok"
    cell.admin_failure = AdminUnavailable("the admin is away")
    cell.granted = None
    seen = await _until_stale(http)
    assert seen["admin"] == "the admin is away"
    assert [one["model"] for one in seen["models"]] == [SMOLLM2, LLAMA]
    assert seen["may_publish"] is None


async def _until_stale(http: httpx.AsyncClient) -> dict[str, Any]:
    for _ in range(1200):
        told = (await http.get("/cell")).json()
        if told["admin"] != "ok":
            return told
        await asyncio.sleep(0.05)
    raise AssertionError("the last look never grew old")


async def test_an_admin_that_never_answered_is_an_error(
    cell: FakeCell, http: httpx.AsyncClient
) -> None:
    cell.admin_failure = AdminUnavailable("the admin is away")
    reply = await http.get("/cell")
    assert (reply.status_code, reply.json()) == (503, {"detail": "the admin is away"})


@each_case(
    "granted, publish, change",
    [
        (Rights(publish=True), True, [True, True]),
        (Rights(models=frozenset({LLAMA})), False, [False, True]),
        (Rights(), False, [False, False]),
        (None, None, [None, None]),
    ],
)
async def test_a_caller_is_told_what_it_may_change(
    granted: Rights | None,
    publish: bool | None,
    change: list[bool | None],
    cell: FakeCell,
    http: httpx.AsyncClient,
) -> None:
    cell.granted = granted
    told = (await http.get("/cell")).json()
    assert told["may_publish"] is publish
    assert [one["may_change"] for one in told["models"]] == change


async def test_a_key_that_the_admin_refuses_is_refused(cell: FakeCell) -> None:
    class Asking(FakeCell):
        async def rights(self) -> Rights:
            raise Unauthenticated("this admin server wants a token")

    reply = await gateway(Asking(published())).get("/cell")
    assert reply.status_code == 401


class Listening(FakeCell):
    """Remembers whose token each call would carry."""

    def __init__(self) -> None:
        super().__init__(published(SMOLLM2), published(LLAMA))
        self.servers = (server(SMOLLM2, LLAMA),)
        self.asked: dict[str, str] = {}

    async def overview(self) -> Overview:
        self.asked["overview"] = presented_token()
        return await super().overview()

    async def rights(self) -> Rights:
        self.asked["rights"] = presented_token()
        return await super().rights()


async def test_a_key_sees_its_models_only_and_asks_for_its_rights_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAX_TOKEN", "the-gateways-own")
    tokens = tmp_path / "tokens"
    tokens.write_text(token_line("ann", "secret", KeyLimits(models=("smollm2",))) + "\n")
    cell = Listening()
    http = gateway(cell, Authentication(TokenFile(tokens)))
    reply = await http.get("/cell", headers={"authorization": "Bearer secret"})
    told = reply.json()
    assert [one["model"] for one in told["models"]] == [SMOLLM2]
    assert [one["model"] for one in told["servers"][0]["servables"]] == [SMOLLM2]
    assert LLAMA not in reply.text
    assert cell.asked == {"overview": "the-gateways-own", "rights": "secret"}


def gateway(cell: FakeCell, asks: Authentication | None = None) -> httpx.AsyncClient:
    app = create_app(cell, GatewayConfig(), asks or Authentication())
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")
