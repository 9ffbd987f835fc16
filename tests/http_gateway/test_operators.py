"""Requests that run at a gateway: who sees them, who may end them, and what keys used."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from http_gateway.app import create_app
from http_gateway.config import GatewayConfig
from sax.auth.authentication import Authentication
from sax.auth.credentials import presented_token
from sax.auth.token_file import TokenFile
from sax.flags.last_lines import LastLines, LogLine
from sax.types import Rights, Version
from tests.http_gateway.fake_cell import FakeCell, published
from tests.identities import Identities
from tests.recorded_spans import RecordedSpans

CHAT = {"model": "smollm2", "messages": [{"role": "user", "content": "Hi"}]}


class Owned(FakeCell):
    """A cell whose admin server gives all rights to `root` alone."""

    def __init__(self, people: Identities) -> None:
        super().__init__(published())
        self.root = people.tokens["root"]

    async def rights(self) -> Rights:
        return Rights(publish=presented_token() == self.root)


class Gateway:
    def __init__(self, folder: Path) -> None:
        self.people = Identities(folder, "root", "ann", "bob")
        self.cell = Owned(self.people)
        asks = Authentication(TokenFile(self.people.path))
        self.app = create_app(self.cell, GatewayConfig(), asks)

    def http(self, name: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app),
            base_url="http://gateway",
            headers={"authorization": f"Bearer {self.people.tokens[name]}"},
        )

    @asynccontextmanager
    async def asking(self, name: str, **more: Any) -> AsyncIterator[asyncio.Task[httpx.Response]]:
        """A chat that has its first two tokens, and no more until it is ended."""
        self.cell.hold_after = 2
        async with self.http(name) as http:
            post = http.post("/v1/chat/completions", json={**CHAT, **more}, timeout=30)
            task = asyncio.create_task(post)
            await asyncio.wait_for(self.cell.opened.get(), 10)
            await asyncio.sleep(0.01)
            yield task
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def gateway(tmp_path: Path) -> Gateway:
    return Gateway(tmp_path)


async def rows(http: httpx.AsyncClient) -> list[dict[str, Any]]:
    return (await http.get("/cell/requests")).json()["requests"]


async def test_a_key_sees_its_own_requests_and_an_operator_all(gateway: Gateway) -> None:
    async with (
        gateway.asking("ann", stream=True),
        gateway.asking("bob"),
        gateway.http("root") as root,
        gateway.http("ann") as ann,
    ):
        seen = await rows(root)
        assert [(each["key"], each["phase"]) for each in seen] == [
            ("ann", "answering"),
            ("bob", "working"),
        ]
        assert {each["model"] for each in seen} == {"/sax/test/smollm2"}
        assert [each["key"] for each in await rows(ann)] == ["ann"]
        assert (await ann.get("/cell/requests")).json()["all"] is False


async def test_a_request_that_is_ended_is_told_why_and_frees_its_slot(gateway: Gateway) -> None:
    for stream in (True, False):
        async with gateway.asking("ann", stream=stream) as task, gateway.http("root") as root:
            (row,) = await rows(root)
            ended = await root.delete(f"/cell/requests/{row['number']}")
            assert ended.json()["key"] == "ann"
            reply = await asyncio.wait_for(task, 10)
            assert "an operator of this gateway ended the request" in reply.text
            assert reply.status_code == (200 if stream else 499)
            assert gateway.cell.open_answers == 0
            assert await rows(root) == []
            gone = await root.delete(f"/cell/requests/{row['number']}")
            assert gone.status_code == 404


async def test_nobody_ends_a_request_of_another_key(gateway: Gateway) -> None:
    async with gateway.asking("ann") as task, gateway.http("root") as root:
        (row,) = await rows(root)
        async with gateway.http("bob") as bob:
            refused = await bob.delete(f"/cell/requests/{row['number']}")
        assert refused.status_code == 403
        assert "--admin_acl" in refused.text
        assert not task.done()
        async with gateway.http("ann") as ann:
            assert (await ann.delete(f"/cell/requests/{row['number']}")).status_code == 200
        await asyncio.wait_for(task, 10)


async def test_what_keys_used_is_counted(gateway: Gateway) -> None:
    async with gateway.http("ann") as ann, gateway.http("bob") as bob, gateway.http("root") as root:
        for _ in range(2):
            assert (await ann.post("/v1/chat/completions", json=CHAT)).status_code == 200
        await bob.post("/v1/chat/completions", json={**CHAT, "model": "none"})
        keys = (await root.get("/cell/keys")).json()["keys"]
        found = {each["key"]: (each["requests"], each["refused"]) for each in keys}
        assert found == {"bob": (1, 1), "ann": (2, 0)}
        assert keys[1]["completion_tokens"] == 10
        assert keys[1]["prompt_tokens"] == 4
        assert [each["key"] for each in (await ann.get("/cell/keys")).json()["keys"]] == ["ann"]


async def test_the_log_is_for_operators(gateway: Gateway) -> None:
    logger, handler = logging.getLogger("tests.operators"), LastLines()
    logger.addHandler(handler)
    logger.error("a disk is full")
    logger.removeHandler(handler)
    async with gateway.http("ann") as ann, gateway.http("root") as root:
        assert (await ann.get("/cell/log")).status_code == 403
        last = (await root.get("/cell/log")).json()["lines"][-1]
    assert (last["level"], last["logger"], last["text"]) == (
        "error",
        "tests.operators",
        "a disk is full",
    )


async def test_operators_read_the_logs_of_all_servers(gateway: Gateway) -> None:
    line = LogLine(at_s=5.0, level="info", logger="model_server", text="loaded")
    gateway.cell.logs = {"": [{**line, "text": "leads"}], "10.0.0.1:10001": [line]}
    async with gateway.http("ann") as ann, gateway.http("root") as root:
        for server, text in (("admin", "leads"), ("10.0.0.1:10001", "loaded")):
            asked = {"server": server}
            assert (await ann.get("/cell/log", params=asked)).status_code == 403
            (told,) = (await root.get("/cell/log", params=asked)).json()["lines"]
            assert told == {**line, "text": text}
        assert (await root.get("/cell/log", params={"server": "x:1"})).status_code == 404


async def test_a_model_server_tells_the_phase_of_a_request(gateway: Gateway) -> None:
    gateway.cell.served = "queued"
    async with gateway.asking("ann", n=2), gateway.http("ann") as ann:
        assert [each["phase"] for each in await rows(ann)] == ["queued"]
        gateway.cell.served = "decode"
        assert [each["phase"] for each in await rows(ann)] == ["decode"]


async def test_a_running_request_links_to_its_trace_and_the_polls_of_a_page_have_none() -> None:
    spans, cell = RecordedSpans(), FakeCell(published())
    config = GatewayConfig(trace_url="https://traces.test/{trace_id}")
    app = create_app(cell, config, tracer=spans)
    cell.hold_after = 1
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        task = asyncio.create_task(http.post("/v1/chat/completions", json=CHAT))
        await cell.opened.get()
        (row,) = await rows(http)
        for path in ("/cell", "/cell/keys", "/cell/log", "/page/app.js"):
            await http.get(path)
        cell.released.set()
        await task
    assert [span.name for span in spans.all if span.parent is None] == ["POST /v1/chat/completions"]
    trace_id = next(span.context.trace_id for span in spans.all)
    assert row["trace_url"] == f"https://traces.test/{trace_id:032x}"


async def test_versions_are_listed_as_the_cell_keeps_them() -> None:
    cell = FakeCell(published())
    old = Version(
        version="a" * 32, checkpoint="old", overrides={"DTYPE": '"int8"'}, at_s=5.0, by="ann"
    )
    cell.kept_versions["/sax/test/smollm2"] = [
        Version(version="b" * 32, checkpoint="new", current=True),
        old,
    ]
    app = create_app(cell, GatewayConfig())
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        told = (await http.get("/versions", params={"model": "/sax/test/smollm2"})).json()
        assert [each["checkpoint"] for each in told] == ["new", "old"]
        assert (told[0]["current"], told[1]["by"]) == (True, "ann")
        assert (await http.get("/versions", params={"model": "/sax/test/x"})).status_code == 404
