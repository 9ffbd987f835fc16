"""Requests held for want of a replica: how long, how many, and what the admin hears."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from sax.client import AsyncClient, replicas
from sax.client.attempts import RetryLimits, Route
from sax.errors import (
    AdminUnavailable,
    Cancelled,
    DeadlineExceeded,
    ModelNotFound,
    ModelNotReady,
    NotLoaded,
    QueueFull,
    SaxError,
)
from sax.types import GenerateRequest, ReplicaStatus, SamplingParams, ServableStatus
from tests.sax.conftest import MODEL
from tests.sax.fake_admin import FakeAdmin
from tests.sax.fake_replica import FakeReplica
from tests.skipped_time import skip

COMING = "loading: reading weights 1 of 2"
READY_S = 5.0
BEYOND_S = 6.0  # and less than an answer of the admin counts


@pytest.fixture(autouse=True)
def _tells_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "_REPORT_S", 0.05)


@pytest.fixture
async def hasty(admin: FakeAdmin) -> AsyncIterator[AsyncClient]:
    """A client that waits a moment for a replica, and longer only if one is coming."""
    client = AsyncClient(admin.address, patience=RetryLimits(ready_s=READY_S, most_held=3))
    yield client
    await client.close()


def ask() -> GenerateRequest:
    return GenerateRequest(model_id=MODEL, prompt="go", sampling=SamplingParams(max_tokens=2))


async def text(client: AsyncClient, timeout_s: float | None = None) -> str:
    return " ".join([chunk.text async for chunk in client.generate(ask(), timeout_s)])


async def beyond_patience(admin: FakeAdmin, call: Coroutine[Any, Any, object]) -> None:
    """Await a call that is held, and let its patience pass."""
    task = asyncio.create_task(call)
    await admin.heard(1)
    skip(BEYOND_S)
    await task


async def test_while_a_replica_is_coming_a_request_is_held_and_then_answered(
    admin: FakeAdmin, replica: FakeReplica, hasty: AsyncClient
) -> None:
    admin.starting = COMING
    answer = asyncio.create_task(text(hasty))
    await admin.heard(1)
    skip(BEYOND_S)
    await admin.heard(1)
    assert not answer.done()
    assert [each.model_id for each in admin.demands] == [MODEL] * len(admin.demands)
    assert len(admin.demands) > 1
    admin.ready(MODEL, replica.address)
    assert await answer == "0 1"
    await admin.heard(0)


async def _all_of(answers: AsyncIterator[Any]) -> int:
    return len([each async for each in answers])


async def _by_callback(client: AsyncClient) -> int:
    chunks: list[object] = []
    await client.generate_to(ask(), chunks.append)
    return len(chunks)


KINDS: dict[str, tuple[Callable[[AsyncClient], Coroutine[Any, Any, object]], object]] = {
    "generate": (lambda client: _all_of(client.generate(ask())), 2),
    "generate_to": (_by_callback, 2),
    "score": (lambda client: client.score(MODEL, "a", ["bc"]), [-2.0]),
    "embed": (lambda client: client.embed(MODEL, ["abc"]), [[3.0, 0.5]]),
    "tokenize": (lambda client: client.tokenize(MODEL, "ab"), ((97, 98), 2048)),
    "detokenize": (lambda client: client.detokenize(MODEL, [97, 98]), "ab"),
    "custom": (lambda client: client.custom(MODEL, b"ab", "flip"), b"flip:ba"),
    "Saxml's Generate": (lambda client: client.saxml_generate(MODEL, "ab"), [("ba", -1.5)]),
    "Saxml's stream": (lambda client: _all_of(client.saxml_generate_stream(MODEL, "ab")), 2),
    "Saxml's Embed": (lambda client: client.saxml_embed(MODEL, "ab"), [2.0, 0.5]),
}


@pytest.mark.extended
@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_of_request_is_held_and_then_answered(
    admin: FakeAdmin, replica: FakeReplica, hasty: AsyncClient, kind: str
) -> None:
    ask_for, answer = KINDS[kind]
    admin.starting = COMING
    held = asyncio.create_task(ask_for(hasty))
    await admin.heard(1)
    skip(BEYOND_S)
    await admin.heard(1)
    assert not held.done()
    admin.ready(MODEL, replica.address)
    assert await held == answer


async def test_one_client_is_one_caller_and_another_one_is_another(
    admin: FakeAdmin, hasty: AsyncClient
) -> None:
    admin.starting = COMING
    async with AsyncClient(admin.address) as other:
        held = [asyncio.create_task(text(each)) for each in (hasty, hasty, other)]
        while len({each.caller for each in admin.demands}) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        for each in held:
            each.cancel()
        await asyncio.gather(*held, return_exceptions=True)


async def test_no_replica_is_coming_and_the_request_is_refused_with_the_reason(
    admin: FakeAdmin, hasty: AsyncClient
) -> None:
    status = ReplicaStatus("a:1", ServableStatus.FAILED, "load failed: truncated")
    admin.models[MODEL] = replace(admin.models[MODEL], replicas=(status,))
    with pytest.raises(ModelNotReady, match="load failed: truncated"):
        await beyond_patience(admin, text(hasty))


async def test_a_load_that_fails_ends_the_holding_with_the_reason(
    admin: FakeAdmin, hasty: AsyncClient
) -> None:
    admin.starting = COMING
    answer = asyncio.create_task(text(hasty))
    await admin.heard(1)
    skip(BEYOND_S)
    await admin.heard(1)
    assert not answer.done()
    status = ReplicaStatus("a:1", ServableStatus.FAILED, "load failed: truncated")
    admin.models[MODEL] = replace(admin.models[MODEL], replicas=(status,))
    admin.starting = ""
    await admin.heard(1)
    skip(BEYOND_S)
    with pytest.raises(ModelNotReady, match="load failed: truncated"):
        await answer


async def test_what_the_admin_told_is_the_reason_though_a_new_try_is_under_way(
    admin: FakeAdmin, hasty: AsyncClient
) -> None:
    admin.refusal = "load failed: truncated"
    status = ReplicaStatus("a:1", ServableStatus.LOADING, COMING)
    admin.models[MODEL] = replace(admin.models[MODEL], replicas=(status,))
    with pytest.raises(ModelNotReady, match="load failed: truncated") as refusal:
        await beyond_patience(admin, text(hasty))
    assert refusal.value.retry_after_s


async def test_an_unpublish_ends_the_holding(admin: FakeAdmin, hasty: AsyncClient) -> None:
    admin.starting = COMING
    answer = asyncio.create_task(text(hasty))
    await admin.heard(1)
    del admin.models[MODEL]
    admin.announce()
    with pytest.raises(ModelNotFound):
        await answer


async def test_the_deadline_ends_the_holding_and_tells_what_it_waited_for(
    admin: FakeAdmin, hasty: AsyncClient
) -> None:
    admin.starting = COMING
    with pytest.raises(DeadlineExceeded, match=COMING):
        await beyond_patience(admin, text(hasty, timeout_s=BEYOND_S))


@pytest.mark.extended
async def test_a_caller_that_goes_away_is_not_counted(admin: FakeAdmin, hasty: AsyncClient) -> None:
    admin.starting = COMING
    held = [asyncio.create_task(text(hasty)) for _ in range(2)]
    await admin.heard(2)
    held[0].cancel()
    await admin.heard(1)
    held[1].cancel()
    await admin.heard(0)
    told = len(admin.demands)
    await asyncio.sleep(0.3)
    assert len(admin.demands) == told  # nobody waits: there is nothing to tell


async def test_beyond_the_bound_the_caller_is_told_when_to_come_back(
    admin: FakeAdmin, replica: FakeReplica, hasty: AsyncClient
) -> None:
    admin.starting = COMING
    held = [asyncio.create_task(text(hasty)) for _ in range(3)]
    await admin.heard(3)
    with pytest.raises(QueueFull, match="3 requests are already waiting") as refusal:
        await text(hasty)
    assert refusal.value.retry_after_s
    admin.ready(MODEL, replica.address)
    assert await asyncio.gather(*held) == ["0 1"] * 3


async def test_an_admin_of_before_hears_nothing_and_nothing_breaks() -> None:
    admin, replica = FakeAdmin(hears_demand=False), FakeReplica()
    async with AsyncClient(await admin.start(), patience=RetryLimits(ready_s=READY_S)) as client:
        await client.publish(MODEL, "counter", "None")
        answer = asyncio.create_task(text(client))
        await asyncio.sleep(0.3)
        admin.ready(MODEL, await replica.start())
        assert await answer == "0 1"
        admin.ready(MODEL)
        answered = True
        while answered:  # until the watch has heard of it
            answer = asyncio.create_task(text(client))
            await asyncio.wait([answer], timeout=0.2)
            skip(READY_S)
            (end,) = await asyncio.gather(answer, return_exceptions=True)
            answered = end == "0 1"
        assert isinstance(end, ModelNotReady)
    await replica.stop()
    await admin.stop()


async def test_an_admin_that_stumbles_is_told_again(
    admin: FakeAdmin, replica: FakeReplica, hasty: AsyncClient
) -> None:
    admin.starting = COMING
    answer = asyncio.create_task(text(hasty))
    await admin.heard(1)
    admin.fail = [AdminUnavailable("another one leads")]
    while admin.fail:  # noqa: ASYNC110 - the fake's calls have no event
        await asyncio.sleep(0.005)
    assert not answer.done()
    admin.ready(MODEL, replica.address)
    assert await answer == "0 1"


async def test_fail_fast_is_not_held(admin: FakeAdmin, hasty: AsyncClient) -> None:
    admin.starting = COMING
    call = hasty.score(MODEL, "a", ["bc"], route=Route(fail_fast=True))
    with pytest.raises(ModelNotReady):
        await beyond_patience(admin, call)


async def test_a_patience_that_does_not_hold_is_over_as_ever(admin: FakeAdmin) -> None:
    admin.starting = COMING
    patience = RetryLimits(ready_s=READY_S, holds=False)
    async with AsyncClient(admin.address, patience=patience) as client:
        with pytest.raises(ModelNotReady):
            await beyond_patience(admin, text(client))


async def test_closing_the_client_ends_held_requests(admin: FakeAdmin) -> None:
    admin.starting = COMING
    client = AsyncClient(admin.address)
    answer = asyncio.create_task(text(client))
    await admin.heard(1)
    await client.close()
    with pytest.raises(Cancelled):
        await answer


async def test_a_request_that_was_held_for_long_still_has_all_its_attempts(
    admin: FakeAdmin, replica: FakeReplica
) -> None:
    """The watch may be a moment ahead of the server."""
    admin.starting = COMING
    patience = RetryLimits(ready_s=READY_S, attempts_s=READY_S)
    async with AsyncClient(admin.address, patience=patience) as client:
        answer = asyncio.create_task(text(client))
        await admin.heard(1)
        skip(BEYOND_S)
        await admin.heard(1)
        replica.fail = [NotLoaded("about to be")]
        admin.ready(MODEL, replica.address)
        assert await answer == "0 1"


@pytest.mark.extended
@pytest.mark.parametrize("fault", [NotLoaded("gone"), None])
async def test_a_replica_known_from_an_earlier_admin_alone_is_given_up_when_it_is_gone(
    admin: FakeAdmin, replica: FakeReplica, hasty: AsyncClient, fault: SaxError | None
) -> None:
    """Else a model that was scaled to zero as the admin changed would never be asked for."""
    admin.ready(MODEL, replica.address)
    assert await text(hasty) == "0 1"
    await admin.stop()
    second = FakeAdmin("second")
    second.starting = COMING
    second.models[MODEL] = replace(admin.models[MODEL], replicas=())
    await second.start(int(admin.address.rpartition(":")[2]))
    while "WatchLoc" not in second.calls:  # noqa: ASYNC110 - the fake's calls have no event
        await asyncio.sleep(0.02)
    if fault is None:
        await replica.stop()
    replica.fail = [fault] if fault else []
    answer = asyncio.create_task(text(hasty))
    await second.heard(1)
    back = FakeReplica()
    second.ready(MODEL, await back.start())
    assert await answer == "0 1"
    await back.stop()
    await second.stop()
