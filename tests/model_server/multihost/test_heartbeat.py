"""Which host is lost, by what was heard of it and when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from model_server.multihost.heartbeat import STALL_S, Heartbeat


def test_a_host_that_is_heard_lives() -> None:
    pulse = Heartbeat([1, 2], 3.0, 0.0)
    for now_s in range(1, 20):
        pulse.heard(1, 0, now_s)
        pulse.heard(2, 0, now_s)
        assert pulse.lost(0, now_s + 0.5) is None


def test_a_silent_host_is_lost_when_the_time_is_over_and_not_before() -> None:
    pulse = Heartbeat([1, 2], 3.0, 0.0)
    pulse.heard(1, 0, 2.9)
    assert pulse.lost(0, 3.0) is None
    assert pulse.lost(0, 3.1) == (2, "no heartbeat for 3.1 s")


def test_of_several_the_one_silent_for_longest_is_named() -> None:
    pulse = Heartbeat([1, 2, 3], 3.0, 0.0)
    pulse.heard(1, 0, 1.0)
    pulse.heard(3, 0, 2.0)
    lost = pulse.lost(0, 100.0)
    assert lost is not None
    assert lost[0] == 2


def test_a_host_that_beats_but_takes_no_command_is_lost_in_the_end() -> None:
    pulse = Heartbeat([1, 2], 3.0, 0.0)
    now_s = 0.0
    while now_s < STALL_S:
        now_s += 1.0
        pulse.heard(1, 7, now_s)
        pulse.heard(2, 5, now_s)
        if now_s < STALL_S:
            assert pulse.lost(7, now_s) is None
    pulse.heard(1, 7, now_s + 2)
    pulse.heard(2, 5, now_s + 2)
    lost = pulse.lost(7, now_s + 2)
    assert lost is not None
    assert lost[0] == 2
    assert "command 6" in lost[1]


def test_a_long_rest_is_no_stall() -> None:
    pulse = Heartbeat([1], 3.0, 0.0)
    for now_s in range(1, 400):
        pulse.heard(1, 4, now_s)
        assert pulse.lost(4, now_s) is None
    pulse.heard(1, 4, 400.0)
    assert pulse.lost(5, 400.5) is None  # told a moment ago


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 50)), max_size=40))
def test_what_all_have_done_is_what_the_slowest_has(beats: list[tuple[int, int]]) -> None:
    pulse = Heartbeat([1, 2, 3], 3.0, 0.0)
    done = dict.fromkeys((1, 2, 3), 0)
    for number, (host, told) in enumerate(beats):
        pulse.heard(host, told, float(number))
        done[host] = max(done[host], told)
    assert pulse.done == min(done.values())


def test_nobody_to_look_after_is_nobody_to_lose() -> None:
    assert Heartbeat([], 3.0, 0.0).lost(9, 1e9) is None
