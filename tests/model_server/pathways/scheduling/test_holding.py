from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from model_server.pathways.scheduling.holding import HandleHolding


def test_what_touches_nothing_blocked_goes_on() -> None:
    holding = HandleHolding()
    holding.block("compile", [1])
    assert not holding.holds([2, 3], "other")


def test_a_held_request_blocks_what_it_touches() -> None:
    holding = HandleHolding()
    holding.block("compile", [1])
    assert holding.holds([1, 2], "execute")
    assert holding.holds([2], "destruct")
    assert not holding.holds([3], "fetch")
    assert holding.release("compile") == ["execute", "destruct"]
    assert holding.idle


def test_what_waits_for_two_things_waits_for_both() -> None:
    holding = HandleHolding()
    holding.block("first", [1])
    holding.block("second", [2])
    assert holding.holds([1, 2], "execute")
    assert holding.release("first") == []
    assert holding.release("second") == ["execute"]


def test_draining_gives_back_all_that_is_held() -> None:
    holding = HandleHolding()
    holding.block("first", [1])
    assert holding.holds([1], "execute")
    assert holding.drain() == ["execute"]
    assert holding.idle
    assert not holding.holds([1], "later")


STEPS = st.lists(st.frozensets(st.integers(0, 6), min_size=1, max_size=3), max_size=30)


@given(STEPS, st.lists(st.integers(0, 6), unique=True), st.integers(0, 30))
def test_requests_of_one_handle_stay_in_order_and_none_is_lost(
    steps: list[frozenset[int]], blocked: list[int], middle: int
) -> None:
    holding = HandleHolding()
    for handle in blocked:
        holding.block(handle, [handle])
    went: list[int] = []
    for at, touches in enumerate(steps):
        if at == middle and blocked:
            went += holding.release(blocked.pop())
        if not holding.holds(touches, at):
            went.append(at)
    for handle in blocked:
        went += holding.release(handle)
    assert sorted(went) == list(range(len(steps)))
    for handle in range(7):
        named = [at for at in went if handle in steps[at]]
        assert named == sorted(named)
