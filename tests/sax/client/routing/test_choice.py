"""The choice of a replica: least loaded, unless one has the prefix and is not clearly busier."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sax.client import AsyncClient
from sax.client.routing.affinity import ANYWHERE, Affinity, PrefixKey
from sax.client.routing.choice import (
    PrefixMatch,
    RecentReplicas,
    ServerLoad,
    Wish,
    choose,
    clearly_busier,
    point_of,
    sides,
    weight,
)
from sax.errors import NotLoaded, QueueFull
from sax.types import CanaryShare, GenerateRequest, SamplingParams
from tests.sax.conftest import MODEL
from tests.sax.fake_admin import FakeAdmin
from tests.sax.fake_replica import FakeReplica

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
    followers = client._locator.replicas._followers
    while (follower := followers[MODEL]).watched.canary != admin.shares[MODEL]:  # noqa: ASYNC110
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
