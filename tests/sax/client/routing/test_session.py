"""Sessions keep requests together whatever their prompts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from sax.client import AsyncClient, Client
from sax.client.routing.affinity import ANYWHERE, prefix_affinity
from sax.client.routing.session import (
    check_session,
    current_session,
    in_session,
    within_session,
)
from sax.errors import InvalidRequest
from sax.types import GenerateRequest, SamplingParams
from tests.sax.conftest import MODEL
from tests.sax.fake_admin import FakeAdmin
from tests.sax.fake_replica import FakeReplica


def test_a_session_counts_more_than_the_prompt() -> None:
    prompt = prefix_affinity(MODEL, "Once upon a time. " * 50)
    named = within_session(MODEL, prompt, "talk")
    assert named == within_session(MODEL, ANYWHERE, "talk")
    assert named != within_session("/sax/test/other", ANYWHERE, "talk")
    assert [key.share for key in named.keys] == [1.0]
    assert within_session(MODEL, prompt) is prompt


def test_requests_without_a_name_are_of_the_session_they_are_made_in() -> None:
    assert current_session() == ""
    with in_session("outer"):
        with in_session("inner"):
            assert current_session() == "inner"
        assert within_session(MODEL, ANYWHERE) == within_session(MODEL, ANYWHERE, "outer")
    assert within_session(MODEL, ANYWHERE) is ANYWHERE


@pytest.mark.parametrize("name", ["", "ü" * 257])
def test_a_name_has_a_bound(name: str) -> None:
    with pytest.raises(InvalidRequest, match="x-session-id has .* bytes"):
        check_session(name, "x-session-id")
    assert check_session("ü" * 256, "x-session-id")


@pytest.fixture
async def pair(admin: FakeAdmin, replica: FakeReplica) -> AsyncIterator[list[FakeReplica]]:
    other = FakeReplica()
    await other.start()
    admin.ready(MODEL, replica.address, other.address)
    yield [replica, other]
    await other.stop()


async def test_a_session_stays_at_its_replica_and_others_are_elsewhere(
    pair: list[FakeReplica], client: AsyncClient
) -> None:
    for turn in range(3):
        for talk in range(16):
            request = GenerateRequest(
                model_id=MODEL,
                prompt=f"talk {talk} turn {turn}",
                sampling=SamplingParams(max_tokens=1),
                session=f"talk {talk}",
            )
            assert [chunk.text async for chunk in client.generate(request)] == ["0"]
    seen = [{str(request.prompt).partition(" turn")[0] for request in r.asked} for r in pair]
    assert not seen[0] & seen[1]
    assert all(seen)


async def test_a_session_leaves_a_replica_that_is_clearly_busier(
    pair: list[FakeReplica], client: AsyncClient
) -> None:
    for replica in pair:
        replica.hold.clear()
    request = GenerateRequest(model_id=MODEL, prompt="go", session="talk")
    streams = [client.generate(request) for _ in range(8)]
    for stream in streams:
        await anext(stream)
    assert sorted(len(replica.asked) for replica in pair) == [3, 5]  # and stays where it moved to
    for stream in streams:
        await stream.aclose()


async def test_requests_of_other_kinds_are_of_a_session_too(
    pair: list[FakeReplica], client: AsyncClient
) -> None:
    with in_session("talk"):
        for _ in range(6):
            await client.score(MODEL, "a", ["bc"])
            await client.saxml_generate(MODEL, "ab")
    assert sorted(len(replica.lm_calls) for replica in pair) == [0, 12]


async def test_a_blocking_client_makes_its_requests_in_the_session_of_its_caller(
    admin: FakeAdmin, pair: list[FakeReplica]
) -> None:
    def ask() -> None:
        with Client(admin.address) as blocking, in_session("talk"):
            for _ in range(8):
                blocking.score(MODEL, "a", ["bc"])

    await asyncio.to_thread(ask)
    assert sorted(len(replica.lm_calls) for replica in pair) == [0, 8]
