"""Which version a request gets while a model has a canary."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sax.client.routing.division import point_of, sides
from sax.types import CanaryShare

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
