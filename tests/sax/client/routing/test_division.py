"""Which version a request gets while a model has a canary."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sax.client import AsyncClient
from sax.client.routing.division import point_of, sides
from sax.errors import NotLoaded, QueueFull
from sax.types import CanaryShare, GenerateRequest, SamplingParams
from tests.sax.conftest import MODEL
from tests.sax.fake_admin import FakeAdmin
from tests.sax.fake_replica import FakeReplica

VERSION = "c" * 32
READY = frozenset("abcd")


def share(percent: float, *addresses: str) -> CanaryShare:
    return CanaryShare(VERSION, percent, frozenset(addresses))


@given(st.frozensets(st.sampled_from("abcd")), st.floats(0, 100), st.floats(0.1, 99.9))
def test_the_sides_are_all_replicas_each_once_and_none_is_empty(
    canaries: frozenset[str], drawn: float, percent: float
) -> None:
    found = sides(READY, share(percent, *canaries, "gone"), b"", drawn)
    assert sorted(address for side in found for address in side) == sorted(READY)
    assert all(found)
    if len(found) == 2:
        assert (found[0] == canaries) == (drawn < percent)


def test_without_a_canary_there_is_one_side() -> None:
    assert sides(READY, None, b"talk", 0) == (READY,)
    assert sides((), None, b"talk", 0) == sides((), share(10, "a"), b"", 0) == ()


@given(st.binary(min_size=1), st.floats(0, 100), st.floats(1, 50))
def test_a_session_keeps_its_version_and_only_comes_to_a_growing_canary(
    session: bytes, drawn: float, percent: float
) -> None:
    first = sides(READY, share(percent, "a"), session, drawn)[0]
    assert first == sides(READY, share(percent, "a"), session, 100 - drawn)[0]
    if first == {"a"}:
        assert sides(READY, share(percent + 10, "a", "b"), session, drawn)[0] == {"a", "b"}


def test_sessions_fall_evenly_and_otherwise_for_another_canary() -> None:
    names = [f"talk {number}".encode() for number in range(2000)]
    points = [point_of(name, VERSION) for name in names]
    assert 0.17 < sum(point < 20 for point in points) / len(points) < 0.23
    again = [point_of(name, "d" * 32) for name in names]
    both = sum(one < 20 and other < 20 for one, other in zip(points, again, strict=True))
    assert both < 0.08 * len(points)


@pytest.fixture
async def canary(admin: FakeAdmin, replica: FakeReplica) -> AsyncIterator[FakeReplica]:
    """A replica of the canary's version, which gets a quarter of the requests."""
    other = FakeReplica()
    await other.start()
    admin.shares[MODEL] = share(25, other.address)
    admin.ready(MODEL, replica.address, other.address)
    yield other
    await other.stop()


async def ask(client: AsyncClient, session: str = "") -> None:
    request = GenerateRequest(
        model_id=MODEL, prompt="go", sampling=SamplingParams(max_tokens=1), session=session
    )
    assert [chunk.text async for chunk in client.generate(request)] == ["0"]


@pytest.mark.extended
async def test_requests_are_divided_by_the_share_and_not_by_the_replicas(
    canary: FakeReplica, replica: FakeReplica, client: AsyncClient
) -> None:
    for _ in range(300):
        await ask(client)
    assert len(canary.asked) + len(replica.asked) == 300
    assert 40 < len(canary.asked) < 115


async def test_sessions_are_divided_and_stay(
    canary: FakeReplica, replica: FakeReplica, client: AsyncClient
) -> None:
    for _ in range(2):
        for talk in range(60):
            await ask(client, f"talk {talk}")
    assert {request.session for request in canary.asked} == {""}  # a name stays with the client
    assert 4 <= len(canary.asked) <= 54
    assert len(canary.asked) % 2 == 0


async def test_calls_of_other_kinds_are_divided_too(
    canary: FakeReplica, replica: FakeReplica, client: AsyncClient
) -> None:
    for _ in range(200):
        await client.score(MODEL, "a", ["bc"])
    assert 20 < len(canary.lm_calls) < 85


async def test_a_new_share_holds_at_once(
    canary: FakeReplica, replica: FakeReplica, admin: FakeAdmin, client: AsyncClient
) -> None:
    await ask(client)
    admin.shares[MODEL] = share(99.99, canary.address)
    admin.announce()
    while (follower := client._locator._followers[MODEL]).watched.canary != admin.shares[MODEL]:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert follower.watched.canary is not None
    before = len(canary.asked)
    for _ in range(50):
        await ask(client)
    assert len(canary.asked) - before >= 48


@pytest.mark.extended
@pytest.mark.parametrize("fault", [QueueFull, NotLoaded])
async def test_the_other_version_takes_what_this_one_cannot(
    canary: FakeReplica,
    replica: FakeReplica,
    client: AsyncClient,
    fault: type[QueueFull | NotLoaded],
) -> None:
    canary.fail = [fault("not now")] * 1000
    for _ in range(100):
        await ask(client)
    assert len(replica.asked) == 100
    assert canary.asked


async def test_an_aborted_canary_gets_requests_only_when_nothing_else_is_left(
    canary: FakeReplica, replica: FakeReplica, admin: FakeAdmin, client: AsyncClient
) -> None:
    admin.shares[MODEL] = share(0, canary.address)
    for number in range(60):
        await ask(client, f"talk {number}" if number % 2 else "")
    assert not canary.asked
    replica.fail = [QueueFull("not now")]
    await ask(client)
    assert len(canary.asked) == 1


async def test_only_the_canary_is_left_and_serves_all(
    canary: FakeReplica, admin: FakeAdmin, client: AsyncClient
) -> None:
    admin.ready(MODEL, canary.address)
    for _ in range(20):
        await ask(client)
    assert len(canary.asked) == 20
