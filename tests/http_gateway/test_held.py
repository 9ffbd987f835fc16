"""Requests for a model at zero, through the gateway: held, answered, or told why not.

The gateway is the real one over the real SDK; the admin and the replica are the SDK tests' own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest

from http_gateway.app import create_app
from http_gateway.config import GatewayConfig
from sax.client import AsyncClient, replicas
from sax.client.attempts import RetryLimits
from sax.types import Autoscaling, ModelSpec, PublishedModel, ReplicaStatus, ServableStatus
from tests.sax.fake_admin import FakeAdmin
from tests.sax.fake_replica import FakeReplica
from tests.skipped_time import skip

MODEL = "/sax/test/counter"
COMING = "loading: reading weights 1 of 2"
BEYOND_S = 6.0  # the client's patience, and less than the deadline and an answer of the admin
DEADLINE_S = 8.0  # of the gateway, where a test waits for it
BOUNDS = Autoscaling(min_replicas=0, max_replicas=1)
ASK = {"model": MODEL, "prompt": "go", "max_tokens": 2}


@pytest.fixture
async def admin() -> AsyncIterator[FakeAdmin]:
    """Its model is at zero, and a replica comes if it is asked for."""
    admin = FakeAdmin()
    spec = ModelSpec(
        model_id=MODEL, model_path="counter", checkpoint="None", replicas=1, autoscaling=BOUNDS
    )
    admin.models[MODEL] = PublishedModel(spec)
    admin.starting = COMING
    await admin.start()
    yield admin
    await admin.stop()


@pytest.fixture
def deadline_s() -> float:
    """Of the gateway: so long that the test itself, on a busy machine, cannot reach it."""
    return 120.0


@pytest.fixture
async def http(
    admin: FakeAdmin, deadline_s: float, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[httpx.AsyncClient]:
    monkeypatch.setattr(replicas, "_REPORT_S", 0.05)
    patience = RetryLimits(ready_s=5, most_held=2)
    async with AsyncClient(admin.address, patience=patience) as client:
        app = create_app(client, GatewayConfig(request_timeout_s=deadline_s))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
            yield http


@pytest.fixture
async def replica() -> AsyncIterator[FakeReplica]:
    replica = FakeReplica()
    await replica.start()
    yield replica
    await replica.stop()


def ask(http: httpx.AsyncClient, **changes: object) -> asyncio.Task[httpx.Response]:
    return asyncio.create_task(http.post("/v1/completions", json={**ASK, **changes}))


async def test_a_request_for_a_model_at_zero_is_held_until_it_is_answered(
    admin: FakeAdmin, http: httpx.AsyncClient, replica: FakeReplica
) -> None:
    whole, stream = ask(http), ask(http, stream=True)
    await admin.heard(2)
    skip(BEYOND_S)
    await admin.heard(2)
    assert not whole.done()
    admin.ready(MODEL, replica.address)
    answer = await whole
    assert (answer.status_code, answer.json()["choices"][0]["text"]) == (200, "01")
    lines = [line for line in (await stream).text.splitlines() if line.startswith("data: {")]
    texts = [json.loads(line.removeprefix("data: "))["choices"][0]["text"] for line in lines]
    assert "".join(texts) == "01"


async def test_beyond_the_bound_it_is_429_and_when_to_come_back(
    admin: FakeAdmin, http: httpx.AsyncClient, replica: FakeReplica
) -> None:
    held = [ask(http), ask(http)]
    await admin.heard(2)
    refused = await ask(http)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    admin.ready(MODEL, replica.address)
    assert [answer.status_code for answer in await asyncio.gather(*held)] == [200, 200]


async def test_a_load_that_fails_is_503_with_the_reason(
    admin: FakeAdmin, http: httpx.AsyncClient
) -> None:
    held = ask(http)
    await admin.heard(1)
    status = ReplicaStatus("a:1", ServableStatus.FAILED, "load failed: truncated")
    admin.models[MODEL] = replace(admin.models[MODEL], replicas=(status,), wanted=1)
    admin.starting = ""
    await admin.heard(1)
    skip(BEYOND_S)
    answer = await held
    assert answer.status_code == 503
    assert "load failed: truncated" in answer.json()["error"]["message"]


@pytest.mark.parametrize("deadline_s", [DEADLINE_S])
async def test_the_gateways_own_deadline_ends_it_with_504(
    admin: FakeAdmin, http: httpx.AsyncClient
) -> None:
    held = ask(http)
    await admin.heard(1)
    skip(DEADLINE_S)
    answer = await held
    assert answer.status_code == 504
    assert COMING in answer.json()["error"]["message"]


async def test_a_client_that_goes_away_is_not_counted_any_more(
    admin: FakeAdmin, http: httpx.AsyncClient
) -> None:
    held = ask(http)
    await admin.heard(1)
    held.cancel()
    await admin.heard(0)
