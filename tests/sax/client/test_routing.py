"""Keys of prompts: equal beginnings give equal keys, and nothing else does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sax.client import AsyncClient, Client
from sax.client.routing import (
    ANYWHERE,
    Affinity,
    PrefixKey,
    PrefixMatch,
    RecentReplicas,
    ServerLoad,
    Wish,
    affinity_of,
    check_session,
    choose,
    clearly_busier,
    current_session,
    in_session,
    point_of,
    prefix_affinity,
    sides,
    weight,
    within_session,
)
from sax.errors import InvalidRequest, NotLoaded, QueueFull
from sax.types import (
    CanaryShare,
    ChatOptions,
    GenerateRequest,
    Image,
    Message,
    SamplingParams,
    Tool,
)
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


NAMES = st.sampled_from("abcdef")
LOADS = st.dictionaries(NAMES, st.builds(ServerLoad, st.booleans(), st.integers(0, 3)), max_size=6)


@given(LOADS, st.frozensets(NAMES))
def test_the_choice_is_the_least_loaded_of_those_not_tried(
    loads: dict[str, ServerLoad], tried: frozenset[str]
) -> None:
    chosen = choose(loads, tried)
    fresh = {address: load for address, load in loads.items() if address not in tried}
    if chosen is None:
        assert not fresh
    else:
        assert fresh[chosen] == min(fresh.values())


def test_a_replica_lost_a_moment_ago_is_the_last_choice() -> None:
    assert choose({"a": ServerLoad(True, 0), "b": ServerLoad(False, 9)}, ()) == "b"
    assert choose({"a": ServerLoad(True, 0)}, ()) == "a"


def test_the_preferred_replica_is_the_choice_however_loaded_until_it_was_tried_or_lost() -> None:
    loads = {"a": ServerLoad(False, 9), "b": ServerLoad(False, 0)}
    assert choose(loads, (), "a") == "a"
    assert choose(loads, {"a"}, "a") == "b"
    assert choose(loads | {"a": ServerLoad(True, 0)}, (), "a") == "b"
    assert choose(loads, (), "elsewhere") == "b"


def test_equals_are_chosen_at_random() -> None:
    loads = {name: ServerLoad(False, 1) for name in "abc"}
    assert {choose(loads, ()) for _ in range(200)} == set("abc")


WISHES = st.builds(
    Wish,
    st.lists(st.builds(PrefixMatch, NAMES, st.floats(0, 1)), max_size=4),
    st.binary(max_size=8),
    st.floats(0, 1),
)


@given(LOADS, st.frozensets(NAMES), WISHES)
def test_a_wish_never_leads_to_a_clearly_busier_replica_nor_to_none(
    loads: dict[str, ServerLoad], tried: frozenset[str], wish: Wish
) -> None:
    chosen = choose(loads, tried, wish=wish)
    fresh = {address: load for address, load in loads.items() if address not in tried}
    if chosen is None:
        assert not fresh
    else:
        assert not clearly_busier(fresh[chosen], min(fresh.values()), 1.0)


@given(LOADS.filter(lambda loads: len(loads) > 0), st.binary(min_size=1, max_size=8))
def test_a_lost_replica_moves_only_its_own_prefixes(
    loads: dict[str, ServerLoad], key: bytes
) -> None:
    idle = {address: ServerLoad(False, 0) for address in loads}
    home = choose(idle, (), wish=Wish(home=key))
    for lost in idle.keys() - {home}:
        rest = {address: load for address, load in idle.items() if address != lost}
        assert choose(rest, (), wish=Wish(home=key)) == home


def test_prefixes_that_nobody_has_seen_spread_evenly() -> None:
    idle = {f"10.0.0.{i}:10000": ServerLoad(False, 0) for i in range(4)}
    keys = [i.to_bytes(4, "big") for i in range(2000)]
    homes = [choose(idle, (), wish=Wish(home=key, home_share=0.5)) for key in keys]
    assert all(400 < homes.count(address) < 600 for address in idle)
    assert homes == [max(idle, key=lambda address: weight(key, address)) for key in keys]


def test_a_replica_that_has_the_whole_prompt_may_be_four_requests_and_a_quarter_ahead() -> None:
    known = Wish([PrefixMatch("a", 1.0)])
    for least, most in ((0, 4), (8, 14), (40, 54)):
        loads = {"a": ServerLoad(False, most), "b": ServerLoad(False, least)}
        assert choose(loads, (), wish=known) == "a"
        loads["a"] = ServerLoad(False, most + 1)
        assert choose(loads, (), wish=known) == "b"


def test_one_that_has_half_of_it_may_be_half_as_far_ahead() -> None:
    loads = {"a": ServerLoad(False, 3), "b": ServerLoad(False, 0)}
    assert choose(loads, (), wish=Wish([PrefixMatch("a", 0.75)])) == "a"
    assert choose(loads, (), wish=Wish([PrefixMatch("a", 0.5)])) == "b"


def test_the_next_best_match_is_taken_while_the_best_one_is_busy_lost_or_tried() -> None:
    loads = {"a": ServerLoad(False, 9), "b": ServerLoad(False, 1), "c": ServerLoad(False, 0)}
    wish = Wish([PrefixMatch("gone", 1.0), PrefixMatch("a", 0.9), PrefixMatch("b", 0.6)])
    assert choose(loads, (), wish=wish) == "b"
    assert choose(loads, {"b"}, wish=wish) == "c"
    assert choose(loads | {"b": ServerLoad(True, 0)}, (), wish=wish) == "c"


LONG, MIDDLE, SHORT = PrefixKey(b"long", 0.9), PrefixKey(b"middle", 0.5), PrefixKey(b"short", 0.2)
PROMPT = Affinity((LONG, MIDDLE, SHORT), 0.5)


def test_an_unknown_prompt_has_the_home_of_its_shortest_prefix() -> None:
    assert RecentReplicas().wish(PROMPT, "ab", 0) == Wish([], b"short", 0.5)
    assert RecentReplicas().wish(ANYWHERE, "ab", 0).home == b""


def test_the_replica_with_the_longest_known_prefix_comes_first() -> None:
    recent = RecentReplicas()
    recent.remember(PROMPT, "a", 0)
    recent.remember(Affinity((MIDDLE, SHORT)), "b", 1)
    assert recent.wish(PROMPT, "ab", 1).known == [PrefixMatch("a", 0.9), PrefixMatch("b", 0.5)]
    recent.remember(PROMPT, "b", 2)
    assert recent.wish(PROMPT, "ab", 2) == Wish([PrefixMatch("b", 0.9)], b"", 0.5)


def test_the_home_is_where_a_prompt_parts_from_what_is_known() -> None:
    recent = RecentReplicas()
    recent.remember(Affinity((SHORT,)), "a", 0)
    assert recent.wish(PROMPT, "ab", 0) == Wish([PrefixMatch("a", 0.2)], b"middle", 0.5)


def test_a_replica_that_is_gone_or_of_another_version_is_as_if_it_had_never_been() -> None:
    recent = RecentReplicas()
    recent.remember(PROMPT, "a", 0)
    assert recent.wish(PROMPT, "bc", 0) == RecentReplicas().wish(PROMPT, "bc", 0)
    recent.remember(Affinity((SHORT,)), "b", 0)
    assert recent.wish(PROMPT, "bc", 0) == Wish([PrefixMatch("b", 0.2)], b"middle", 0.5)


def test_what_was_not_used_for_ten_minutes_is_forgotten() -> None:
    recent = RecentReplicas()
    recent.remember(PROMPT, "a", 0)
    assert recent.wish(PROMPT, "ab", 600).known
    assert not recent.wish(PROMPT, "ab", 600.1).known


@given(st.lists(st.integers(0, 30)), st.integers(1, 8))
def test_it_holds_the_keys_used_last_and_no_more(used: list[int], most: int) -> None:
    recent = RecentReplicas(most=most)
    for at, key in enumerate(used):
        recent.remember(Affinity((PrefixKey(bytes([key]), 1.0),)), "a", at)
    assert len(recent) == min(most, len({*used}))
    for key in list(dict.fromkeys(reversed(used)))[:most]:
        assert recent.wish(Affinity((PrefixKey(bytes([key]), 1.0),)), "ab", len(used)).known


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


async def talk_in(client: AsyncClient, session: str = "") -> None:
    request = GenerateRequest(
        model_id=MODEL, prompt="go", sampling=SamplingParams(max_tokens=1), session=session
    )
    assert [chunk.text async for chunk in client.generate(request)] == ["0"]


@pytest.mark.extended
async def test_requests_are_divided_by_the_share_and_not_by_the_replicas(
    canary: FakeReplica, replica: FakeReplica, client: AsyncClient
) -> None:
    for _ in range(300):
        await talk_in(client)
    assert len(canary.asked) + len(replica.asked) == 300
    assert 40 < len(canary.asked) < 115


async def test_sessions_are_divided_and_stay(
    canary: FakeReplica, replica: FakeReplica, client: AsyncClient
) -> None:
    for _ in range(2):
        for talk in range(60):
            await talk_in(client, f"talk {talk}")
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
    await talk_in(client)
    admin.shares[MODEL] = share(99.99, canary.address)
    admin.announce()
    followers = client._locator.replicas._followers
    while (follower := followers[MODEL]).watched.canary != admin.shares[MODEL]:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert follower.watched.canary is not None
    before = len(canary.asked)
    for _ in range(50):
        await talk_in(client)
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
        await talk_in(client)
    assert len(replica.asked) == 100
    assert canary.asked


async def test_an_aborted_canary_gets_requests_only_when_nothing_else_is_left(
    canary: FakeReplica, replica: FakeReplica, admin: FakeAdmin, client: AsyncClient
) -> None:
    admin.shares[MODEL] = share(0, canary.address)
    for number in range(60):
        await talk_in(client, f"talk {number}" if number % 2 else "")
    assert not canary.asked
    replica.fail = [QueueFull("not now")]
    await talk_in(client)
    assert len(canary.asked) == 1


async def test_only_the_canary_is_left_and_serves_all(
    canary: FakeReplica, admin: FakeAdmin, client: AsyncClient
) -> None:
    admin.ready(MODEL, canary.address)
    for _ in range(20):
        await talk_in(client)
    assert len(canary.asked) == 20
