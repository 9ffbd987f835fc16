"""The choice of a replica: least loaded, unless one has the prefix and is not clearly busier."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sax.client.routing.choice import PrefixMatch, ServerLoad, Wish, choose, clearly_busier, weight

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
