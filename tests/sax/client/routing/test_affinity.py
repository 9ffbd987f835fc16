"""Keys of prompts: equal beginnings give equal keys, and nothing else does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sax.client import AsyncClient, Client
from sax.client.routing.affinity import (
    ANYWHERE,
    affinity_of,
    check_session,
    current_session,
    in_session,
    prefix_affinity,
    within_session,
)
from sax.errors import InvalidRequest, QueueFull
from sax.types import ChatOptions, GenerateRequest, Image, Message, SamplingParams, Tool
from tests.sax import conftest
from tests.sax.conftest import MODEL
from tests.sax.fake_admin import FakeAdmin
from tests.sax.fake_replica import FakeReplica

TEXTS = st.text(max_size=40).map(lambda text: text * 50)


def digests(prompt: str | tuple[int, ...] | tuple[Message, ...]) -> list[bytes]:
    return [key.digest for key in prefix_affinity(MODEL, prompt).keys]


@given(TEXTS, TEXTS, TEXTS)
def test_prompts_that_begin_alike_share_the_keys_of_all_cuts_of_what_is_common(
    start: str, one: str, other: str
) -> None:
    common = digests(start)
    for prompt in (start + one, start + other):
        made = digests(prompt)
        assert made[len(made) - len(common) :] == common


@given(st.text(min_size=256, max_size=600), st.integers(0, 255))
def test_a_difference_in_the_first_bytes_leaves_no_common_key(text: str, at: int) -> None:
    changed = text[:at] + ("a" if text[at] != "a" else "b") + text[at + 1 :]
    if len(text[:at].encode(errors="surrogatepass")) < 250:
        assert not {*digests(text)} & {*digests(changed)}


@given(TEXTS)
def test_the_longest_prefix_comes_first_with_its_share_of_the_prompt(text: str) -> None:
    keys = prefix_affinity(MODEL, text).keys
    shares = [key.share for key in keys]
    assert shares == sorted(shares, reverse=True)
    assert all(0 < share <= 1 for share in shares)
    assert len({key.digest for key in keys}) == len(keys)


def test_a_short_prompt_has_no_keys() -> None:
    assert prefix_affinity(MODEL, "x" * 255) == ANYWHERE
    assert len(prefix_affinity(MODEL, "x" * 256).keys) == 1
    assert prefix_affinity(MODEL, ()) == prefix_affinity(MODEL, "") == ANYWHERE


def test_a_prompt_of_any_length_has_few_keys() -> None:
    keys = prefix_affinity(MODEL, "x" * (1 << 22)).keys
    assert len(keys) == 20
    assert keys[0].share == 1.0


def test_a_chat_goes_on_from_the_keys_of_its_earlier_turns() -> None:
    first = (Message("system", "Be brief. " * 40), Message("user", "Name a colour."))
    second = (*first, Message("assistant", "Blue."), Message("user", "Another one. " * 30))
    assert digests(second)[-len(digests(first)) :] == digests(first)
    assert digests((Message("user", first[0].content),)) != digests(first[:1])


def test_chats_about_one_image_share_keys_and_those_about_others_do_not() -> None:
    image, other = Image(b"x" * 100), Image(b"x" * 101)
    first = digests((Message("user", (image, "Name a colour.")),))
    assert first
    assert set(first) & set(digests((Message("user", (image, "Count.")),)))
    assert not set(first) & set(digests((Message("user", (other, "Name a colour.")),)))


def test_token_ids_have_keys_too_and_impossible_ones_none() -> None:
    ids = tuple(range(100))
    assert digests((*ids, 5, 6))[-3:] == digests(ids)
    assert prefix_affinity(MODEL, (*ids, 2**70)) == ANYWHERE


def test_requests_that_share_no_cache_share_no_key() -> None:
    prompt = (Message("user", "Hello there. " * 40),)
    plain = GenerateRequest(model_id=MODEL, prompt=prompt)
    others = (
        GenerateRequest(model_id="/sax/test/other", prompt=prompt),
        GenerateRequest(model_id=MODEL, prompt=prompt, cache_salt="mine"),
        GenerateRequest(model_id=MODEL, prompt=prompt, chat=ChatOptions(tools=(Tool("now"),))),
    )
    for each in others:
        assert not {*affinity_of(plain).keys} & {*affinity_of(each).keys}


@pytest.fixture
async def pair(admin: FakeAdmin, replica: FakeReplica) -> AsyncIterator[list[FakeReplica]]:
    other = FakeReplica()
    await other.start()
    admin.ready(conftest.MODEL, replica.address, other.address)
    yield [replica, other]
    await other.stop()


async def ask(client: AsyncClient, prompt: str) -> None:
    request = GenerateRequest(
        model_id=conftest.MODEL, prompt=prompt, sampling=SamplingParams(max_tokens=1)
    )
    assert [chunk.text async for chunk in client.generate(request)] == ["0"]


async def test_every_turn_of_a_conversation_goes_to_one_replica_and_to_none_that_is_full(
    pair: list[FakeReplica], client: AsyncClient
) -> None:
    talks = [f"{number} talks of the weather and the wind. " * 10 for number in range(12)]
    for _ in range(3):
        for talk in talks:
            await ask(client, talk)
        talks = [f"{talk} And then?" for talk in talks]
    seen = [{str(each.prompt).partition(" ")[0] for each in one.asked} for one in pair]
    assert not seen[0] & seen[1]
    assert all(seen)

    full, free = pair
    talk = next(talk for talk in talks if talk.partition(" ")[0] in seen[0])
    full.fail = [QueueFull("not now")]
    before = len(free.asked)
    await ask(client, talk)
    await ask(client, talk)  # where it was answered
    assert len(free.asked) == before + 2


async def test_a_second_client_makes_the_same_choice_without_having_seen_the_first(
    pair: list[FakeReplica], admin: FakeAdmin
) -> None:
    talks = [f"{number} talks of the weather and the wind. " * 10 for number in range(12)]
    for _ in range(2):
        async with AsyncClient(admin.address) as client:
            for talk in talks:
                await ask(client, talk)
                await client.saxml_generate(conftest.MODEL, talk)
    for replica in pair:
        prompts = [request.prompt for request in replica.asked]
        assert len(prompts) == 2 * len({*prompts}) == len(replica.lm_calls)


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
async def pair_of_session(
    admin: FakeAdmin, replica: FakeReplica
) -> AsyncIterator[list[FakeReplica]]:
    other = FakeReplica()
    await other.start()
    admin.ready(MODEL, replica.address, other.address)
    yield [replica, other]
    await other.stop()


async def test_a_session_stays_at_its_replica_and_others_are_elsewhere(
    pair_of_session: list[FakeReplica], client: AsyncClient
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
    seen = [
        {str(request.prompt).partition(" turn")[0] for request in r.asked} for r in pair_of_session
    ]
    assert not seen[0] & seen[1]
    assert all(seen)


async def test_a_session_leaves_a_replica_that_is_clearly_busier(
    pair_of_session: list[FakeReplica], client: AsyncClient
) -> None:
    for replica in pair_of_session:
        replica.hold.clear()
    request = GenerateRequest(model_id=MODEL, prompt="go", session="talk")
    streams = [client.generate(request) for _ in range(8)]
    for stream in streams:
        await anext(stream)
    assert sorted(len(replica.asked) for replica in pair_of_session) == [
        3,
        5,
    ]  # and stays where it moved to
    for stream in streams:
        await stream.aclose()


async def test_requests_of_other_kinds_are_of_a_session_too(
    pair_of_session: list[FakeReplica], client: AsyncClient
) -> None:
    with in_session("talk"):
        for _ in range(6):
            await client.score(MODEL, "a", ["bc"])
            await client.saxml_generate(MODEL, "ab")
    assert sorted(len(replica.lm_calls) for replica in pair_of_session) == [0, 12]


async def test_a_blocking_client_makes_its_requests_in_the_session_of_its_caller(
    admin: FakeAdmin, pair_of_session: list[FakeReplica]
) -> None:
    def ask() -> None:
        with Client(admin.address) as blocking, in_session("talk"):
            for _ in range(8):
                blocking.score(MODEL, "a", ["bc"])

    await asyncio.to_thread(ask)
    assert sorted(len(replica.lm_calls) for replica in pair_of_session) == [0, 8]
