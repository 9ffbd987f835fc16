"""Responses in the background: they run without their clients, and none is lost in silence."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import httpx

from http_gateway.app import create_app
from http_gateway.config import GatewayConfig
from http_gateway.openai.responses.background import BackgroundPace, BackgroundRuns
from sax.errors import ReplicaLost
from sax.storage.object_store import MeasuredStore, open_store
from tests.each_case import each_case
from tests.http_gateway.fake_cell import FakeCell, published
from tests.stores.faulty_store import FaultyStore

T = TypeVar("T")
PATH = "/v1/responses"
ASKED = {"model": "smollm2", "input": "abc", "background": True}
FAST = BackgroundPace(beat_s=0.01, patience_s=60, grace_s=0.05, most_of_owner=2)


@contextlib.asynccontextmanager
async def gateway(
    cell: FakeCell, store: MeasuredStore
) -> AsyncGenerator[tuple[httpx.AsyncClient, BackgroundRuns]]:
    app = create_app(cell, GatewayConfig(), store=store)
    runs: BackgroundRuns = app.state.background
    runs._pace = FAST
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        yield http, runs


def a_cell() -> FakeCell:
    return FakeCell(published("/sax/test/smollm2"))


async def ended(http: httpx.AsyncClient, id: str) -> dict[str, Any]:
    async def told() -> dict[str, Any]:
        return (await http.get(f"{PATH}/{id}")).json()

    return await until(told, lambda told: told["status"] != "in_progress")


async def until(look: Callable[[], Awaitable[T]], good: Callable[[T], bool]) -> T:
    async with asyncio.timeout(10):
        while True:
            if good(found := await look()):
                return found
            await asyncio.sleep(0.005)


async def sign_of(store: MeasuredStore) -> bytes:
    (name,) = await store.names("open_responses")
    return await store.get(name)


async def test_an_answer_is_read_from_any_gateway_once_it_is_there():
    cell, store = a_cell(), open_store("memory://")
    cell.hold_after = 2
    async with gateway(cell, store) as (http, _), gateway(a_cell(), store) as (other, _):
        begun = (await http.post(PATH, json=ASKED)).json()
        assert (begun["status"], begun["output"]) == ("in_progress", [])
        place = f"{PATH}/{begun['id']}"
        assert (await other.get(place)).json() == begun
        assert (await other.delete(place)).status_code == 400
        more = {"model": "smollm2", "input": "d", "previous_response_id": begun["id"]}
        refused = await other.post(PATH, json=more)
        assert "still in progress" in refused.json()["error"]["message"]
        cell.released.set()
        told = await ended(other, begun["id"])
        assert told["status"] == "completed"
        assert told["output"][0]["content"][0]["text"] == " 3 4 5 6 7"
        assert (await other.post(PATH, json=more)).status_code == 200
        assert (await other.delete(place)).status_code == 200
    assert not [name for name in await store.names("") if begun["id"] in name]


async def test_no_sign_of_life_is_left_of_answers_that_have_ended():
    store = open_store("memory://")
    async with gateway(a_cell(), store) as (http, runs):
        runs._pace = replace(FAST, beat_s=0.0)
        for _ in range(40):
            await ended(http, (await http.post(PATH, json=ASKED)).json()["id"])
        # The mark is deleted after the end is stored, which is what a client sees.
        await until(lambda: store.names("open_responses"), lambda names: not names)
        assert not runs._runs
        assert not runs._outcomes


async def test_an_answer_that_fails_says_why():
    cell = a_cell()
    cell.failure, cell.fail_at = ReplicaLost("gone"), 2
    async with gateway(cell, open_store("memory://")) as (http, _):
        told = await ended(http, (await http.post(PATH, json=ASKED)).json()["id"])
    assert told["status"] == "failed"
    assert told["error"] == {"code": "server_error", "message": "gone"}


async def test_any_gateway_cancels_a_response_and_its_run_ends():
    cell, store = a_cell(), open_store("memory://")
    cell.hold_after = 2
    async with gateway(cell, store) as (http, _), gateway(a_cell(), store) as (other, _):
        for asked in (http, other):
            cell.answer_closed.clear()
            id = (await http.post(PATH, json=ASKED)).json()["id"]
            await cell.opened.get()
            for _ in range(2):
                assert (await asked.post(f"{PATH}/{id}/cancel")).json()["status"] == "cancelled"
            await asyncio.to_thread(cell.answer_closed.wait, 10)
            assert not cell.open_answers
            assert (await http.get(f"{PATH}/{id}")).json()["status"] == "cancelled"
        assert await store.names("open_responses") == []


async def test_a_response_whose_gateway_died_fails_with_the_reason():
    cell, store = a_cell(), open_store("memory://")
    cell.hold_after = 2
    async with gateway(cell, store) as (http, dead), gateway(a_cell(), store) as (other, runs):
        dead._pace = BackgroundPace(beat_s=1000)
        id = (await http.post(PATH, json=ASKED)).json()["id"]
        await runs.watch(1000.0)
        await runs.watch(1059.0)
        assert (await other.get(f"{PATH}/{id}")).json()["status"] == "in_progress"
        await runs.watch(1060.0)
        told = (await other.get(f"{PATH}/{id}")).json()
        assert told["status"] == "failed"
        assert "is gone" in told["error"]["message"]
        # It was only slow: what it finds now comes too late.
        cell.released.set()
        await asyncio.sleep(0.05)
        assert (await http.get(f"{PATH}/{id}")).json() == told


class CountingStore(FaultyStore):
    """Counts what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.lists = self.reads = 0

    async def names(self, prefix: str) -> list[str]:
        self.lists += 1
        return await super().names(prefix)

    async def get(self, name: str) -> bytes:
        self.reads += 1
        return await super().get(name)


async def test_a_look_is_one_list_where_no_other_gateway_runs_anything():
    cell, store = a_cell(), CountingStore()
    cell.hold_after = 2
    async with gateway(cell, store) as (http, own), gateway(a_cell(), store) as (_, other):
        own._pace = BackgroundPace(beat_s=1000)
        for found in (False, True):
            store.lists = store.reads = 0
            assert not await own.watch(1000.0)
            assert (store.lists, store.reads) == (1, 0)
            assert await other.watch(1000.0) is found
            assert (store.lists, store.reads) == (2, found)
            await http.post(PATH, json=ASKED)


async def test_signs_of_life_keep_a_response_running():
    cell, store = a_cell(), open_store("memory://")
    cell.hold_after = 2
    async with gateway(cell, store) as (http, _), gateway(a_cell(), store) as (other, runs):
        id = (await http.post(PATH, json=ASKED)).json()["id"]
        for now_s in (1000.0, 2000.0, 3000.0):
            await runs.watch(now_s)
            before = await sign_of(store)
            await until(partial(sign_of, store), lambda sign, old=before: sign != old)
        assert (await other.get(f"{PATH}/{id}")).json()["status"] == "in_progress"


async def test_a_gateway_that_stops_lets_what_is_left_fail():
    cell, store = a_cell(), open_store("memory://")
    cell.hold_after = 2
    async with gateway(cell, store) as (http, runs):
        async with runs.running():
            id = (await http.post(PATH, json=ASKED)).json()["id"]
        told = (await http.get(f"{PATH}/{id}")).json()
    assert (told["status"], "was stopped" in told["error"]["message"]) == ("failed", True)


async def test_a_key_has_so_many_responses_in_the_background_at_once():
    cell = a_cell()
    cell.hold_after = 0
    async with gateway(cell, open_store("memory://")) as (http, _):
        replies = [await http.post(PATH, json=ASKED) for _ in range(3)]
        assert [reply.status_code for reply in replies] == [200, 200, 429]
        assert replies[2].json()["error"]["param"] == "background"
        cell.released.set()
        await ended(http, replies[0].json()["id"])
        await ended(http, replies[1].json()["id"])
        assert (await http.post(PATH, json=ASKED)).status_code == 200


async def test_what_cannot_be_stored_is_not_begun():
    cell, store = a_cell(), FaultyStore()
    store.fails = "before"
    async with gateway(cell, store) as (http, runs):
        assert (await http.post(PATH, json=ASKED)).status_code == 503
        assert not runs._runs
    assert cell.requests == []


@each_case("fields, param", [
    ({"stream": True}, "stream"),
    ({"store": False}, "store"),
])  # fmt: skip
async def test_what_contradicts_the_background_is_refused(fields: dict[str, object], param: str):
    async with gateway(a_cell(), open_store("memory://")) as (http, _):
        reply = await http.post(PATH, json={**ASKED, **fields})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


async def test_without_a_store_the_flag_is_named():
    async with create_client(a_cell()) as http:
        reply = await http.post(PATH, json=ASKED)
    assert reply.json()["error"]["param"] == "background"
    assert "--files" in reply.json()["error"]["message"]


def create_client(cell: FakeCell) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(create_app(cell, GatewayConfig()))
    return httpx.AsyncClient(transport=transport, base_url="http://gateway")
