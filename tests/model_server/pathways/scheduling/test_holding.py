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


def test_what_a_held_request_only_reads_others_may_read_and_nobody_may_change() -> None:
    holding = HandleHolding()
    holding.block("copy", [1])
    assert holding.holds([1, 11], "a lane's step", keeps=[5])
    assert not holding.holds([12], "another lane's step", keeps=[5])
    assert holding.holds([5], "free the weights")
    assert holding.holds([13], "a step after that", keeps=[5])
    assert holding.release("copy") == ["a lane's step", "free the weights", "a step after that"]


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


HANDLES = st.frozensets(st.integers(0, 6), max_size=3)
STEPS = st.lists(st.tuples(HANDLES, HANDLES), max_size=30)


@given(STEPS, st.lists(st.integers(0, 6), unique=True), st.integers(0, 30))
def test_changes_of_one_handle_stay_in_order_with_its_readers_and_none_is_lost(
    steps: list[tuple[frozenset[int], frozenset[int]]], blocked: list[int], middle: int
) -> None:
    holding = HandleHolding()
    for handle in blocked:
        holding.block(handle, [handle])
    went: list[int] = []
    for at, (changes, keeps) in enumerate(steps):
        if at == middle and blocked:
            went += holding.release(blocked.pop())
        if not holding.holds(changes, at, keeps):
            went.append(at)
    for handle in blocked:
        went += holding.release(handle)
    assert sorted(went) == list(range(len(steps)))
    for place, at in enumerate(went):
        for later in went[place + 1 :]:
            if later < at:  # it was overtaken: neither changes what the other names
                assert steps[later][0].isdisjoint(frozenset.union(*steps[at]))
                assert steps[at][0].isdisjoint(frozenset.union(*steps[later]))
