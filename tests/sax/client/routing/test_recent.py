"""The memory of where prefixes went: the longest match first, bounded in size and age."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sax.client.routing.affinity import ANYWHERE, Affinity, PrefixKey
from sax.client.routing.choice import PrefixMatch, Wish
from sax.client.routing.recent import RecentReplicas

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
