"""Which replica a request goes to, and what happens when that one fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace

import pytest

from sax.client import AsyncClient
from sax.client.attempts import RetryLimits, Route
from sax.errors import (
    AdminUnavailable,
    Cancelled,
    InvalidName,
    InvalidRequest,
    ModelNotFound,
    ModelNotReady,
    NotLoaded,
    NotRetried,
    QueueFull,
    ReplicaLost,
    SaxError,
    ShuttingDown,
)
from sax.types import (
    AnswerSoFar,
    GenerateRequest,
    ReplicaStatus,
    SamplingParams,
    ServableStatus,
    TokenChunk,
)
from tests.sax.conftest import MODEL
from tests.sax.fake_admin import FakeAdmin
from tests.sax.fake_replica import FakeReplica


@pytest.fixture
async def other() -> AsyncIterator[FakeReplica]:
    replica = FakeReplica()
    await replica.start()
    yield replica
    await replica.stop()


@pytest.fixture
async def hasty(admin: FakeAdmin) -> AsyncIterator[AsyncClient]:
    """A client that waits for no replica."""
    client = AsyncClient(admin.address, patience=RetryLimits(ready_s=0.05))
    yield client
    await client.close()


@pytest.fixture
async def brief(admin: FakeAdmin) -> AsyncIterator[AsyncClient]:
    """A client that makes two attempts to go on with an answer."""
    client = AsyncClient(admin.address, patience=RetryLimits(resumed_attempts=2))
    yield client
    await client.close()


def ask(tokens: int = 2, model_id: str = MODEL) -> GenerateRequest:
    sampling = SamplingParams(max_tokens=tokens)
    return GenerateRequest(model_id=model_id, prompt="go", sampling=sampling)


async def text(client: AsyncClient, request: GenerateRequest) -> str:
    return " ".join([chunk.text async for chunk in client.generate(request)])


async def answer_forever(client: AsyncClient) -> None:
    while True:
        await text(client, ask())
        await asyncio.sleep(0.005)


async def test_requests_spread_over_the_ready_replicas_by_load(
    admin: FakeAdmin, replica: FakeReplica, other: FakeReplica, client: AsyncClient
) -> None:
    admin.ready(MODEL, replica.address, other.address)
    replica.hold.clear()
    other.hold.clear()
    streams = [client.generate(ask()) for _ in range(10)]
    for stream in streams:
        await anext(stream)
    assert (len(replica.asked), len(other.asked)) == (5, 5)
    for stream in streams:
        await stream.aclose()


async def test_a_client_asks_the_replica_it_prefers_and_another_when_that_one_is_full(
    admin: FakeAdmin, replica: FakeReplica, other: FakeReplica
) -> None:
    admin.ready(MODEL, replica.address, other.address)
    async with AsyncClient(admin.address, preferred=other.address) as client:
        assert [await text(client, ask()) for _ in range(6)] == ["0 1"] * 6
        assert (len(replica.asked), len(other.asked)) == (0, 6)
        other.fail = [QueueFull("not now")]
        assert await text(client, ask()) == "0 1"
        assert len(replica.asked) == 1


@pytest.mark.parametrize("fault", [QueueFull, NotLoaded, ReplicaLost, ShuttingDown])
async def test_a_replica_that_refuses_is_passed_over_for_another(
    admin: FakeAdmin,
    replica: FakeReplica,
    other: FakeReplica,
    client: AsyncClient,
    fault: type[SaxError],
) -> None:
    admin.ready(MODEL, replica.address, other.address)
    replica.fail = [fault("not now") for _ in range(9)]
    assert [await text(client, ask()) for _ in range(6)] == ["0 1"] * 6


async def test_a_dead_replica_is_passed_over_for_another(
    admin: FakeAdmin, replica: FakeReplica, client: AsyncClient
) -> None:
    dead = FakeReplica()
    admin.ready(MODEL, await dead.start(), replica.address)
    await dead.stop()
    assert [await text(client, ask()) for _ in range(6)] == ["0 1"] * 6


async def test_when_every_queue_is_full_the_caller_hears_it_at_once(
    admin: FakeAdmin, replica: FakeReplica, other: FakeReplica, client: AsyncClient
) -> None:
    admin.ready(MODEL, replica.address, other.address)
    for each in (replica, other):
        each.fail = [QueueFull("full", retry_after_s=2.0)] * 2
    with pytest.raises(QueueFull, match="full") as caught:
        await text(client, ask())
    assert caught.value.retry_after_s == 2.0
    assert (len(replica.fail), len(other.fail)) == (1, 1)


@pytest.mark.extended
async def test_attempts_are_bounded(
    admin: FakeAdmin, replica: FakeReplica, client: AsyncClient
) -> None:
    admin.ready(MODEL, replica.address)
    replica.fail = [NotLoaded("unloaded")] * 99
    with pytest.raises(NotLoaded):
        await text(client, ask())
    assert len(replica.asked) == RetryLimits().attempts


async def test_a_wrong_request_is_not_tried_again(
    admin: FakeAdmin, replica: FakeReplica, other: FakeReplica, client: AsyncClient
) -> None:
    admin.ready(MODEL, replica.address, other.address)
    replica.fail = other.fail = [InvalidRequest("top_p is 3", param="top_p")]
    with pytest.raises(InvalidRequest, match="top_p is 3"):
        await text(client, ask())
    assert len(replica.asked) + len(other.asked) == 1


@pytest.mark.extended
async def test_a_replica_lost_in_mid_answer_is_a_replica_lost(
    admin: FakeAdmin, replica: FakeReplica, brief: AsyncClient
) -> None:
    admin.ready(MODEL, replica.address)
    replica.hold.clear()
    stream = brief.generate(ask(9))
    await anext(stream)
    await replica.stop()
    with pytest.raises(ReplicaLost, match=replica.address):
        await anext(stream)


async def test_a_sink_hears_of_the_replica_that_answers_and_of_no_other(
    admin: FakeAdmin, replica: FakeReplica, other: FakeReplica, client: AsyncClient
) -> None:
    admin.ready(MODEL, replica.address, other.address)
    replica.fail = other.fail = [QueueFull("full")]  # the first to be asked
    chunks: list[TokenChunk] = []
    await client.generate_to(ask(3), chunks.append)
    assert [chunk.text for chunk in chunks] == ["0", "1", "2"]
    assert len(replica.asked) == len(other.asked) == 1


async def begun_at(
    replica: FakeReplica, client: AsyncClient, request: GenerateRequest
) -> tuple[list[TokenChunk], asyncio.Task[None]]:
    """Return the chunks of an answer, which grow, once its first one came from the replica."""
    replica.hold.clear()
    chunks: list[TokenChunk] = []
    answer = asyncio.create_task(client.generate_to(request, chunks.append))
    while not chunks:  # noqa: ASYNC110 - a sink has no event
        await asyncio.sleep(0.005)
    return chunks, answer


async def left_to(other: FakeReplica, admin: FakeAdmin, client: AsyncClient) -> None:
    """Only this replica is ready, and the client knows: it makes no attempt at another one."""
    admin.ready(MODEL, other.address)
    while client._locator.replicas._followers[MODEL].watched.usable != {other.address}:  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def test_an_answer_goes_on_at_another_replica_after_its_last_token(
    admin: FakeAdmin, replica: FakeReplica, other: FakeReplica, client: AsyncClient
) -> None:
    admin.ready(MODEL, replica.address)
    chunks, answer = await begun_at(replica, client, ask(9))
    admin.ready(MODEL, replica.address, other.address)
    await replica.stop()
    await answer
    assert [chunk.text for chunk in chunks] == [str(token) for token in range(9)]
    assert [each.answer for each in other.asked] == [
        AnswerSoFar(token_ids=(0,), score=0.0, version="1")
    ]
    assert other.asked[0].sampling == replace(ask(9).sampling, seed=7)  # the first one's


async def test_an_iterated_answer_goes_on_too_and_more_than_once(
    admin: FakeAdmin, replica: FakeReplica, other: FakeReplica, client: AsyncClient
) -> None:
    admin.ready(MODEL, replica.address)
    replica.interrupt = ShuttingDown("going")
    admin.ready(MODEL, replica.address, other.address)
    other.interrupt = NotLoaded("unloaded")
    assert await text(client, ask(6)) == "0 1 2 3 4 5"
    asked = sorted((*replica.asked, *other.asked), key=lambda each: _had(each))
    assert [_had(each) for each in asked] == [0, 1, 2, 3, 4, 5]


def _had(request: GenerateRequest) -> int:
    return len(request.answer.token_ids) if request.answer else 0


@pytest.mark.extended
async def test_an_answer_that_has_begun_waits_for_a_place_in_a_full_queue(
    admin: FakeAdmin, replica: FakeReplica, other: FakeReplica, client: AsyncClient
) -> None:
    admin.ready(MODEL, replica.address)
    chunks, answer = await begun_at(replica, client, ask(4))
    other.fail = [QueueFull("full")] * 5
    await left_to(other, admin, client)
    await replica.stop()
    await answer
    assert [chunk.text for chunk in chunks] == ["0", "1", "2", "3"]


async def test_an_answer_that_no_other_replica_goes_on_with_is_lost_with_both_reasons(
    admin: FakeAdmin, replica: FakeReplica, other: FakeReplica, brief: AsyncClient
) -> None:
    admin.ready(MODEL, replica.address)
    chunks, answer = await begun_at(replica, brief, ask(4))
    other.fail = [ReplicaLost("it died, too")] * 99
    await left_to(other, admin, brief)
    await replica.stop()
    with pytest.raises(ReplicaLost, match=rf"{replica.address}.*no other replica.*it died, too"):
        await answer
    assert len(chunks) == 1
    assert len(other.asked) == 1  # of two attempts: the request may be what kills replicas


async def test_a_replica_that_would_begin_an_answer_again_is_not_listened_to(
    admin: FakeAdmin, replica: FakeReplica, other: FakeReplica, brief: AsyncClient
) -> None:
    admin.ready(MODEL, replica.address)
    chunks, answer = await begun_at(replica, brief, ask(4))
    other.resumes = False
    await left_to(other, admin, brief)
    await replica.stop()
    with pytest.raises(ReplicaLost, match="token 1 of the answer instead of token 2"):
        await answer
    assert [chunk.text for chunk in chunks] == ["0"]


async def test_an_error_of_the_request_itself_ends_an_answer_that_has_begun(
    admin: FakeAdmin, replica: FakeReplica, other: FakeReplica, client: AsyncClient
) -> None:
    admin.ready(MODEL, replica.address)
    _, answer = await begun_at(replica, client, ask(4))
    other.fail = [InvalidRequest("no such token")]
    await left_to(other, admin, client)
    await replica.stop()
    with pytest.raises(InvalidRequest, match="no such token"):
        await answer


async def test_a_request_waits_a_moment_for_the_first_replica(
    admin: FakeAdmin, replica: FakeReplica, client: AsyncClient
) -> None:
    answer = asyncio.create_task(text(client, ask()))
    while "WatchLoc" not in admin.calls:  # noqa: ASYNC110 - the fake's calls have no event
        await asyncio.sleep(0.005)
    admin.ready(MODEL, replica.address)
    assert await answer == "0 1"


async def test_a_model_that_is_not_ready_says_why_and_when_to_come_back(
    admin: FakeAdmin, hasty: AsyncClient
) -> None:
    model = admin.models[MODEL]
    status = ReplicaStatus("", ServableStatus.NONE, "no server has 8 chips")
    admin.models[MODEL] = type(model)(model.spec, (status,))
    with pytest.raises(ModelNotReady, match="no server has 8 chips") as caught:
        await text(hasty, ask())
    assert caught.value.retry_after_s


async def test_an_unknown_model_offers_the_nearest_names(
    admin: FakeAdmin, hasty: AsyncClient
) -> None:
    with pytest.raises(ModelNotFound):
        await text(hasty, ask(model_id="/sax/test/count"))
    with pytest.raises(ModelNotFound):  # asked anew, not remembered
        await text(hasty, ask(model_id="/sax/test/count"))
    assert admin.calls.count("WatchLoc") == 2


async def test_a_malformed_name_is_refused_before_anyone_is_asked(
    admin: FakeAdmin, client: AsyncClient
) -> None:
    with pytest.raises(InvalidName):
        await text(client, ask(model_id="counter"))
    assert not admin.calls


async def test_an_unpublished_model_is_not_found_and_found_again_when_republished(
    admin: FakeAdmin, replica: FakeReplica, client: AsyncClient
) -> None:
    admin.ready(MODEL, replica.address)
    assert await text(client, ask()) == "0 1"
    model = admin.models.pop(MODEL)
    admin.announce()
    with pytest.raises(ModelNotFound):
        await answer_forever(client)  # until the watch has heard of it
    admin.models[MODEL] = model
    assert await text(client, ask()) == "0 1"


async def test_the_admin_is_not_on_the_request_path(
    admin: FakeAdmin, replica: FakeReplica, client: AsyncClient
) -> None:
    admin.ready(MODEL, replica.address)
    assert await text(client, ask()) == "0 1"
    await admin.stop()
    assert [await text(client, ask()) for _ in range(3)] == ["0 1"] * 3


async def test_a_restarted_admin_is_followed_again(
    admin: FakeAdmin, replica: FakeReplica, other: FakeReplica, client: AsyncClient
) -> None:
    """It first knows of no replica, and the old one serves on; then it names another one."""
    admin.ready(MODEL, replica.address)
    assert await text(client, ask()) == "0 1"
    await admin.stop()
    second = FakeAdmin("second")
    second.models[MODEL] = type(admin.models[MODEL])(admin.models[MODEL].spec)
    await second.start(int(admin.address.rpartition(":")[2]))
    while "WatchLoc" not in second.calls:
        assert await text(client, ask()) == "0 1"
        await asyncio.sleep(0.02)
    assert await text(client, ask()) == "0 1"
    second.ready(MODEL, other.address)
    while not other.asked:
        assert await text(client, ask()) == "0 1"
        await asyncio.sleep(0.005)
    await second.stop()


@pytest.mark.extended
async def test_without_an_admin_the_first_request_says_so() -> None:
    admin = FakeAdmin()
    async with AsyncClient(await admin.start()) as client:
        await admin.stop()
        with pytest.raises(AdminUnavailable, match=admin.address):
            await text(client, ask())


async def test_a_lost_replica_is_not_preferred_for_being_idle(
    admin: FakeAdmin, replica: FakeReplica, client: AsyncClient
) -> None:
    dead = FakeReplica()
    admin.ready(MODEL, await dead.start(), replica.address)
    await dead.stop()
    replica.hold.clear()
    streams = [client.generate(ask(9)) for _ in range(8)]
    for stream in streams:
        await anext(stream)
    assert len(replica.asked) == 8
    for stream in streams:
        await stream.aclose()


async def test_calls_are_tried_at_another_replica_too(
    admin: FakeAdmin, replica: FakeReplica, other: FakeReplica, client: AsyncClient
) -> None:
    admin.ready(MODEL, replica.address, other.address)
    replica.fail = [NotLoaded("unloaded") for _ in range(9)]
    for _ in range(4):
        assert await client.score(MODEL, "a", ["bc"]) == [-2.0]
    assert other.lm_calls == ["Score"] * 4


DEADLY = GenerateRequest(model_id=MODEL, prompt="die", request_id="bad-1")


@pytest.fixture
async def three(admin: FakeAdmin) -> AsyncIterator[list[FakeReplica]]:
    replicas = [FakeReplica() for _ in range(3)]
    admin.ready(MODEL, *[await each.start() for each in replicas])
    yield replicas
    for each in replicas:
        await each.stop()


def dead(replicas: list[FakeReplica]) -> int:
    return sum(each.ending is not None for each in replicas)


@pytest.mark.parametrize("iterated", [True, False])
async def test_what_ended_a_server_while_others_had_tokens_is_tried_at_no_other(
    three: list[FakeReplica], client: AsyncClient, caplog: pytest.LogCaptureFixture, iterated: bool
) -> None:
    for each in three:
        each.hold.clear()
    streams = [client.generate(ask(3)) for _ in range(6)]
    for stream in streams:
        await anext(stream)
    asked = text(client, DEADLY) if iterated else client.generate_to(DEADLY, lambda chunk: None)
    with pytest.raises(NotRetried, match="may be what ends them"):
        await asked
    assert dead(three) == 1
    assert "request bad-1 is refused" in caplog.text
    for each in three:
        each.hold.set()
    assert [[chunk.text async for chunk in stream] for stream in streams] == [["1", "2"]] * 6


async def test_what_ended_two_servers_ends_no_third(
    three: list[FakeReplica], client: AsyncClient
) -> None:
    with pytest.raises(NotRetried, match="and one before it"):
        await text(client, DEADLY)
    assert dead(three) == 2
    assert await text(client, ask()) == "0 1"


async def test_a_call_that_ends_servers_ends_two_at_most(
    three: list[FakeReplica], client: AsyncClient
) -> None:
    with pytest.raises(NotRetried):
        await client.saxml_embed(MODEL, "die")
    assert await text(client, ask()) == "0 1"


async def test_those_that_waited_beside_what_ended_a_server_are_answered(
    three: list[FakeReplica], client: AsyncClient, admin: FakeAdmin
) -> None:
    first, *others = three
    first.beats, first.silent = False, True
    admin.ready(MODEL, first.address)
    innocent = [asyncio.create_task(text(client, ask())) for _ in range(5)]
    while len(first.asked) < 5:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    deadly = asyncio.create_task(text(client, DEADLY))
    admin.ready(MODEL, *[each.address for each in others])
    with pytest.raises(NotRetried):
        await deadly
    assert await asyncio.gather(*innocent) == ["0 1"] * 5
    assert dead(three) == 2


async def test_fail_fast_makes_one_attempt(
    admin: FakeAdmin, replica: FakeReplica, client: AsyncClient
) -> None:
    admin.ready(MODEL, replica.address)
    replica.fail = [NotLoaded("unloaded")]
    with pytest.raises(NotLoaded):
        await client.score(MODEL, "a", ["bc"], route=Route(fail_fast=True))
    assert replica.lm_calls == ["Score"]


async def test_a_given_address_needs_no_admin(replica: FakeReplica) -> None:
    async with AsyncClient("127.0.0.1:1") as client:
        route = Route(address=replica.address)
        assert await client.saxml_generate(MODEL, "abc", route=route) == [("cba", -1.5)]


async def test_closing_the_client_ends_open_requests_with_cancelled(
    admin: FakeAdmin, replica: FakeReplica
) -> None:
    admin.ready(MODEL, replica.address)
    replica.hold.clear()
    client = AsyncClient(admin.address)
    stream = client.generate(ask(9))
    await anext(stream)
    await client.close()
    with pytest.raises(Cancelled):
        await anext(stream)


async def test_closing_the_answer_cancels_it_at_the_replica(
    admin: FakeAdmin, replica: FakeReplica, client: AsyncClient
) -> None:
    admin.ready(MODEL, replica.address)
    async with aclosing(client.generate(ask(1000))) as chunks:
        await anext(chunks)
    while not replica.cancelled:  # noqa: ASYNC110 - the fake's calls have no event
        await asyncio.sleep(0.005)


async def test_another_replica_gets_only_what_is_left_of_the_time(
    admin: FakeAdmin, client: AsyncClient, replica: FakeReplica, other: FakeReplica
) -> None:
    admin.ready(MODEL, replica.address, other.address)
    replica.fail = [ReplicaLost("gone")]
    other.fail = [ReplicaLost("gone")]
    limited = replace(ask(), timeout_s=30.0)
    assert [chunk.text async for chunk in client.generate(limited, timeout_s=60.0)] == ["0", "1"]
    told = [asked.timeout_s for asked in (*replica.asked, *other.asked)]
    assert len(told) == 3
    assert all(each is not None and 0 < each <= 30 for each in told)
    assert len(set(told)) > 1
