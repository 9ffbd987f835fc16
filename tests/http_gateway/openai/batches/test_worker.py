"""Gateways that share a store: a batch is run by one of them, and goes on when that one is gone."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from http_gateway.app import create_app
from http_gateway.config import GatewayConfig
from http_gateway.openai import stored
from http_gateway.openai.batches.batch_run import BatchPace
from http_gateway.openai.batches.records import BatchBeat
from http_gateway.openai.batches.worker import BatchLease
from sax.auth.authentication import NO_AUTHENTICATION, Authentication
from sax.auth.key_limits import KeyLimits
from sax.auth.token_file import TokenLines, new_token, token_line
from sax.errors import QueueFull
from sax.storage.object_store import ObjectStore, StoreUnavailable, open_store
from tests.each_case import each_case
from tests.http_gateway.fake_cell import FakeCell, published
from tests.http_gateway.openai.batches.asked import (
    FAST,
    StoppingCell,
    chat,
    ended,
    lines_in,
    start,
    until,
)
from tests.stores.faulty_store import FaultyStore
from tests.stores.place import Place

COUNT = 200
LINES = [chat(f"{n}", "x" * (n % 50 + 1)) for n in range(COUNT)]


@contextlib.asynccontextmanager
async def gateway(
    cell: FakeCell,
    store: ObjectStore,
    pace: BatchPace | None = FAST,
    authentication: Authentication = NO_AUTHENTICATION,
    headers: dict[str, str] | None = None,
) -> AsyncGenerator[httpx.AsyncClient]:
    """pace: None: it runs no batches."""
    app = create_app(cell, GatewayConfig(), authentication, store)
    if pace is not None:
        app.state.batches._pace = pace
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        contextlib.nullcontext() if pace is None else app.state.batches.running(),
        httpx.AsyncClient(transport=transport, base_url="http://g", headers=headers) as http,
    ):
        http.app = app  # type: ignore[attr-defined]
        yield http


def idle() -> FakeCell:
    return FakeCell(published())


async def answered_once(http: httpx.AsyncClient, batch: dict[str, Any], count: int = COUNT) -> None:
    assert batch["status"] == "completed", batch
    assert batch["request_counts"] == {"total": count, "completed": count, "failed": 0}
    answers = await lines_in(http, batch["output_file_id"])
    assert {*answers} == {f"{n}" for n in range(count)}
    for n in range(count):
        told = answers[f"{n}"]["response"]["body"]["choices"][0]["message"]["content"]
        assert told.startswith(f" {n % 50 + 1} ")


@pytest.mark.extended
async def test_another_gateway_goes_on_after_one_that_died(tmp_path: Path):
    done = 100
    shared, first, second = open_store(str(tmp_path)), StoppingCell(done), idle()
    dying = FaultyStore(shared)
    async with gateway(first, dying) as http:
        id = (await start(http, LINES))["id"]
        await until(http, id, lambda batch: batch["request_counts"]["completed"] == done)
        dying.fails = "before"  # it cannot say that it goes
    async with gateway(second, shared) as http:
        batch = await ended(http, id)
        await answered_once(http, batch)
    assert len(second.requests) == COUNT - done


@pytest.mark.extended
async def test_a_gateway_that_ends_lets_another_go_on_at_once():
    shared, first, second = open_store("memory://"), StoppingCell(100), idle()
    patient = replace(FAST, patience_s=3600)
    async with gateway(first, shared, patient) as http:
        id = (await start(http, LINES))["id"]
        await until(http, id, lambda batch: batch["request_counts"]["completed"] > 0)
    async with gateway(second, shared, patient) as http:
        await answered_once(http, await ended(http, id))


@pytest.mark.extended
async def test_two_gateways_do_not_run_the_same_batch():
    shared, first, second = open_store("memory://"), idle(), idle()
    patient = replace(FAST, patience_s=3600)
    async with gateway(first, shared, patient) as a, gateway(second, shared, patient) as b:
        ids = [(await start(http, LINES))["id"] for http in (a, b, a)]
        for id in ids:
            await answered_once(b, await ended(b, id))
    assert len(first.requests) + len(second.requests) == 3 * COUNT
    claims = [name for name in await shared.names("batches") if "/claims/" in name]
    assert len(claims) == 3


@pytest.mark.extended
@pytest.mark.parametrize("beat_s", [0.01, 3600])
async def test_a_gateway_that_was_frozen_writes_nothing_over_anothers_work(beat_s: float):
    """Even if it never learns that another has the batch."""
    shared, first, second = open_store("memory://"), idle(), idle()
    frozen = FaultyStore(shared)
    async with gateway(first, frozen, replace(FAST, beat_s=beat_s)) as a:
        id = (await start(a, LINES))["id"]
        for _ in range(COUNT // 2):
            await first.opened.get()
        frozen.gate.clear()
        async with gateway(second, shared) as b:
            done = asyncio.create_task(ended(b, id))
            await second.opened.get()
            frozen.gate.set()  # both believe to run it now
            await answered_once(b, await done)
            await asyncio.sleep(0.2)
            await answered_once(b, await ended(b, id))


@pytest.mark.extended
async def test_every_kind_of_store_keeps_files_and_batches(place: Place):
    store = open_store(place.url, timeout_s=60)
    first, second = StoppingCell(5), idle()
    async with gateway(first, store) as http:
        id = (await start(http, LINES[:20]))["id"]
        await until(http, id, lambda batch: batch["request_counts"]["completed"] > 0)
    async with gateway(second, store) as http:
        batch = await ended(http, id)
        await answered_once(http, batch, 20)
        assert len((await http.get("/v1/files")).json()["data"]) == 2
        assert (await http.delete(f"/v1/files/{batch['input_file_id']}")).status_code == 200
        assert len((await http.get("/v1/files")).json()["data"]) == 1


class FlakyStore(FaultyStore):
    """Loses every third call, at random: before it is done, or its answer after."""

    def __init__(self, store: ObjectStore, seed: int) -> None:
        super().__init__(store)
        self._random = random.Random(seed)
        self.on = False

    async def create(self, name: str, data: bytes) -> None:
        await self._flaky(self.store.create(name, data))

    async def replace(self, name: str, data: bytes) -> None:
        await self._flaky(self.store.replace(name, data))

    async def get(self, name: str) -> bytes:
        return await self._flaky(self.store.get(name))

    async def names(self, prefix: str) -> list[str]:
        return await self._flaky(self.store.names(prefix))

    async def delete(self, names: Sequence[str]) -> None:
        await self._flaky(self.store.delete(names))

    async def _flaky(self, call: Any) -> Any:
        fault = self._random.random() if self.on else 1.0
        if fault < 1 / 6:
            call.close()
            raise StoreUnavailable("lost on the way")
        result = await call
        if fault < 1 / 3:
            raise StoreUnavailable("lost on the way back")
        return result


@pytest.mark.extended
@pytest.mark.parametrize("seed", range(3))
async def test_a_store_that_fails_at_random_costs_time_and_nothing_else(
    seed: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(stored, "PAUSE_S", 0.001)
    shared = open_store("memory://")
    flaky = FlakyStore(shared, seed)
    lines = LINES[:60]
    async with (
        gateway(idle(), flaky) as a,
        gateway(idle(), shared, None) as b,
    ):
        id = (await start(a, lines))["id"]
        flaky.on = True
        await answered_once(b, await ended(b, id), 60)


async def test_a_cancelled_batch_keeps_what_was_answered():
    async with gateway(StoppingCell(20), open_store("memory://")) as http:
        await cancelled(http)


async def cancelled(http: httpx.AsyncClient) -> None:
    id = (await start(http, [chat(f"{n}") for n in range(100)]))["id"]
    await until(http, id, lambda batch: batch["request_counts"]["completed"] == 20)
    cancelling = (await http.post(f"/v1/batches/{id}/cancel")).json()
    assert cancelling["status"] in ("cancelling", "cancelled")
    batch = await ended(http, id)
    assert batch["status"] == "cancelled"
    assert batch["cancelled_at"]
    assert batch["cancelling_at"]
    counts = batch["request_counts"]
    assert counts == {"total": 100, "completed": 20, "failed": 80}
    errors = await lines_in(http, batch["error_file_id"])
    answers = await lines_in(http, batch["output_file_id"])
    assert {line["error"]["code"] for line in errors.values()} == {"batch_cancelled"}
    assert {*errors, *answers} == {f"{n}" for n in range(100)}
    assert not {*errors} & {*answers}
    again = await http.post(f"/v1/batches/{id}/cancel")
    assert again.status_code == 400


async def test_a_batch_expires_and_says_so_of_each_line():
    cell, store = idle(), open_store("memory://")
    cell.hold_after = 0
    async with gateway(cell, store) as http:
        kept = http.app.state.batches._kept  # type: ignore[attr-defined]
        id = (await start(http, LINES[:20], completion_window="1h"))["id"]
        await cell.opened.get()
    now_s = kept.clock() + 3600
    async with gateway(cell, store) as http:
        http.app.state.batches._kept.clock = lambda: now_s  # type: ignore[attr-defined]
        batch = await ended(http, id)
        assert batch["status"] == "expired"
        assert batch["request_counts"] == {"total": 20, "completed": 0, "failed": 20}
        errors = await lines_in(http, batch["error_file_id"])
        assert {line["error"]["code"] for line in errors.values()} == {"batch_expired"}
        assert len(errors) == 20


async def test_a_batch_whose_input_is_gone_fails():
    store = open_store("memory://")
    cell = idle()
    cell.hold_after = 0
    async with gateway(cell, store) as http:
        begun = await start(http, LINES[:20])
        await until(http, begun["id"], lambda batch: batch["status"] == "in_progress")
        await http.delete(f"/v1/files/{begun['input_file_id']}")
    async with gateway(idle(), store) as http:
        batch = await ended(http, begun["id"])
        assert batch["status"] == "failed"
        assert batch["errors"]["data"][0]["code"] == "input_file_missing"


async def test_lines_wait_while_every_replica_is_full(monkeypatch: pytest.MonkeyPatch):
    cell = idle()
    cell.failure = QueueFull("full", retry_after_s=0.01)
    async with gateway(cell, open_store("memory://")) as http:
        runner = http.app.state.batches._runner  # type: ignore[attr-defined]

        async def soon(_: float) -> None:
            await asyncio.sleep(0.01)

        http.app.state.batches._runner = replace(runner, sleep=soon)  # type: ignore[attr-defined]
        id = (await start(http, LINES[:10]))["id"]
        for _ in range(30):
            await cell.opened.get()
        cell.failure = None
        await answered_once(http, await ended(http, id), 10)


async def test_a_batch_may_do_what_its_key_may():
    tokens = {name: new_token() for name in ("alice", "bob")}
    text = "\n".join(token_line(name, token) for name, token in tokens.items())
    cell = FakeCell(published())
    model = cell.models["/sax/test/smollm2"]
    spec = replace(model.spec, acls={"lm.generate": "alice"})
    cell.models["/sax/test/smollm2"] = replace(model, spec=spec)
    store = open_store("memory://")
    keys = Authentication(TokenLines(text, "TOKENS"))
    headers = {name: {"authorization": f"Bearer {token}"} for name, token in tokens.items()}
    async with (
        gateway(cell, store, authentication=keys, headers=headers["alice"]) as alice,
        gateway(cell, store, authentication=keys, headers=headers["bob"]) as bob,
    ):
        good = await ended(alice, (await start(alice, LINES[:3]))["id"])
        bad = await ended(bob, (await start(bob, LINES[:3]))["id"])
        assert good["request_counts"]["completed"] == 3
        assert bad["request_counts"]["failed"] == 3
        errors = await lines_in(bob, bad["error_file_id"])
        assert {line["response"]["status_code"] for line in errors.values()} == {403}
        assert (await bob.get(f"/v1/batches/{good['id']}")).status_code == 404
        assert (await bob.get(f"/v1/files/{good['output_file_id']}")).status_code == 404
        assert [b["id"] for b in (await bob.get("/v1/batches")).json()["data"]] == [bad["id"]]


async def test_a_batch_of_a_key_that_was_taken_back_is_not_run():
    token, store = new_token(), open_store("memory://")
    keys = Authentication(TokenLines(token_line("alice", token), "TOKENS"))
    others = Authentication(TokenLines(token_line("bob", new_token()), "TOKENS"))
    headers = {"authorization": f"Bearer {token}"}
    async with (
        gateway(idle(), store, None, keys, headers) as http,
        gateway(idle(), store, FAST, others),
    ):
        id = (await start(http, LINES[:2]))["id"]
        batch = await ended(http, id)
        errors = await lines_in(http, batch["error_file_id"])
        assert {line["response"]["status_code"] for line in errors.values()} == {401}


class CountingCell(FakeCell):
    """Tells how many answers were under way at once."""

    def __init__(self) -> None:
        super().__init__(published())
        self.now = self.most = 0

    async def generate_to(self, *args: Any, **settings: Any) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        await super().generate_to(*args, **settings)
        self.now -= 1


@each_case(
    "limits, most_at_once, pauses, waited_s",
    [
        (KeyLimits(concurrent=2), 2, True, 0),
        (KeyLimits(rpm=4), None, True, 30),
        (KeyLimits(tpm=20), None, True, 1),
        (KeyLimits(models=("smollm2",)), None, False, 0),
    ],
)
async def test_lines_count_against_the_limits_of_their_key(
    limits: KeyLimits, most_at_once: int | None, pauses: bool, waited_s: float
):
    token, cell, now, naps = new_token(), CountingCell(), [0.0], list[float]()
    keys = Authentication(TokenLines(token_line("alice", token, limits), "TOKENS"))

    async def sleep(seconds: float) -> None:
        naps.append(seconds)
        now[0] += seconds
        await asyncio.sleep(0)

    headers = {"authorization": f"Bearer {token}"}
    async with gateway(cell, open_store("memory://"), None, keys, headers) as http:
        worker = http.app.state.batches  # type: ignore[attr-defined]
        worker._pace = FAST
        worker._runner.limiter._clock = lambda: now[0]
        worker._runner = replace(worker._runner, sleep=sleep)
        async with worker.running():
            batch = await ended(http, (await start(http, LINES[:20]))["id"])
        assert batch["request_counts"]["completed"] == 20
        key = keys.named("alice")
        assert key is not None
        assert worker._runner.limiter._now(key).running == 0
    assert most_at_once is None or cell.most <= most_at_once
    assert bool(naps) is pauses
    assert sum(naps) >= waited_s


async def test_batches_of_a_key_over_its_limits_hold_up_no_others():
    tokens = {"slow": new_token(), "quick": new_token()}
    slow = token_line("slow", tokens["slow"], KeyLimits(tpm=1))
    keys = Authentication(TokenLines(f"{slow}\n{token_line('quick', tokens['quick'])}", "TOKENS"))
    store = open_store("memory://")
    headers = {name: {"authorization": f"Bearer {token}"} for name, token in tokens.items()}
    async with gateway(idle(), store, None, keys, headers["slow"]) as http:
        for _ in range(6):
            await start(http, LINES[:20])
    async with gateway(idle(), store, FAST, keys, headers["quick"]) as http:
        batch = await ended(http, (await start(http, LINES[:3]))["id"])
    assert batch["request_counts"]["completed"] == 3


def beat(count: int, *, resigned: bool = False) -> BatchBeat:
    return BatchBeat(count=count, completed=0, failed=0, resigned=resigned)


def test_a_batch_that_nobody_claimed_is_vacant():
    assert BatchLease().look(0, None, 5).vacant(5, 15)


def test_a_claim_is_believed_until_its_beats_have_stood_still():
    lease = BatchLease().look(1, beat(1), 100)
    assert not lease.vacant(114, 15)
    assert lease.look(1, beat(1), 110).vacant(115, 15)
    assert not lease.look(1, beat(2), 114).vacant(120, 15)


def test_a_claim_without_a_beat_has_the_same_time():
    lease = BatchLease().look(1, None, 100)
    assert not lease.vacant(114, 15)
    assert lease.vacant(115, 15)


def test_a_newer_claim_is_a_sign_of_life():
    assert not BatchLease().look(1, beat(9), 100).look(2, None, 114).vacant(120, 15)


def test_who_resigned_leaves_the_batch_at_once():
    assert BatchLease().look(1, beat(2, resigned=True), 100).vacant(100, 15)
