"""An island that dies takes no answer with it: another goes on, token for token."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from hypothesis import strategies as st

from model_server.engine.engine import Engine, EngineRequest, SequenceUpdate
from model_server.engine.failure import DevicesLost
from model_server.engine.islands.engine_group import EngineGroup
from model_server.engine.request import Begun
from sax.errors import ReplicaLost, SaxError
from tests.model_server.engine.conftest import Inbox
from tests.model_server.engine.fake_runner import FakeRunner
from tests.model_server.engine.test_engine import LIMITS, ask_for, gated
from tests.model_server.engine.trace import alone, scores_alone
from tests.model_server.examples import examples
from tests.model_server.waiting import wait_until


def dying(step: int) -> FakeRunner:
    """It loses its devices before the result of this step."""
    return FakeRunner(LIMITS, fail_result=step, failure=DevicesLost)


@contextmanager
def group_of(*runners: FakeRunner) -> Iterator[tuple[EngineGroup, Inbox]]:
    """Islands a, b, ... with these runners; all must give everything back."""
    inbox, threads = Inbox(), set(threading.enumerate())
    group = EngineGroup(inbox.deliver)
    for name, runner in zip("abc", runners, strict=False):
        group.add(name, runner)
    yield group, inbox
    group.close()
    stats = group.stats()
    assert (stats.running, stats.waiting, stats.slots_used, stats.pages_used) == (0, 0, 0, 0)
    assert all(runner.closed for runner in runners)
    assert not set(threading.enumerate()) - threads


def asks(count: int, max_tokens: int = 12) -> list[EngineRequest]:
    return [ask_for(size, max_tokens) for size in range(3, 3 + count)]


def check(inbox: Inbox, asked: dict[int, EngineRequest]) -> None:
    """Every answer is the one that it would be alone, without a gap or a token twice."""
    for id, request in asked.items():
        tokens, finish = alone(request, LIMITS)
        assert inbox.end(id) == finish
        assert inbox.tokens(id) == tokens


def submitted(group: EngineGroup, requests: list[EngineRequest]) -> dict[int, EngineRequest]:
    return {group.submit(request): request for request in requests}


def test_requests_are_spread_over_the_islands() -> None:
    islands = gated(), gated()
    with group_of(*islands) as (group, inbox):
        asked = submitted(group, asks(6))
        for island in islands:
            island.wait_launched(1)
            assert island.gate
            island.gate.release(1000)
        check(inbox, asked)
        assert group.stats().slots == 2 * LIMITS.slots
        assert group.stats().finished == 6


@examples(st.integers(1, 20), st.integers(1, 12), st.integers(1, 20), few=20, many=60)
def test_answers_go_on_where_another_island_left_them(step: int, count: int, second: int) -> None:
    with group_of(dying(step), dying(second), FakeRunner(LIMITS)) as (group, inbox):
        check(inbox, submitted(group, asks(count)))
        assert group.failed is None


@examples(st.integers(1, 12), st.integers(1, 12), few=15, many=30)
def test_an_island_is_lost_with_all_its_lanes(step: int, count: int) -> None:
    lost: list[str] = []
    inbox, dies = Inbox(), dying(step)
    group = EngineGroup(inbox.deliver, on_lost=lambda island, failure: lost.append(island))
    group.add("a", FakeRunner(LIMITS), dies, FakeRunner(LIMITS))
    group.add("b", FakeRunner(LIMITS))
    check(inbox, submitted(group, asks(count)))
    died = dies.launched >= step  # and its result is read, or will be
    if died:
        wait_until(lambda: lost == ["a"])
    assert group.islands == (("b",) if died else ("a", "b"))
    group.close()
    assert len(lost) == died


def test_lanes_of_an_island_share_its_requests() -> None:
    lanes = gated(), gated()
    inbox = Inbox()
    group = EngineGroup(inbox.deliver)
    group.add("a", *lanes)
    asked = submitted(group, asks(4))
    for lane in lanes:
        lane.wait_launched(1)
        assert lane.gate
        lane.gate.release(1000)
    check(inbox, asked)
    assert group.islands == ("a",)
    group.close()
    assert all(lane.closed for lane in lanes)


def test_what_no_island_is_left_for_waits_until_one_is_added() -> None:
    next_one = FakeRunner(LIMITS)
    with group_of(dying(4)) as (group, inbox):
        asked = submitted(group, asks(3))
        wait_until(lambda: not group.islands)
        with pytest.raises(ReplicaLost, match="all devices of this replica are lost"):
            group.submit(ask_for(5))
        assert isinstance(group.failed, DevicesLost)
        assert group.stats().waiting == 3
        group.add("a", next_one)
        assert group.failed is None
        check(inbox, asked)
    assert next_one.closed


def test_whoever_waits_for_an_island_may_leave_or_be_given_up() -> None:
    with group_of(dying(2)) as (group, inbox):
        leaves, stays = submitted(group, asks(2))
        wait_until(lambda: not group.islands)
        group.cancel(leaves)
        assert inbox.end(leaves) == "cancelled"
        group.give_up(ReplicaLost("no island came back within 60 s"))
        error = inbox.end(stays)
        assert isinstance(error, SaxError)
        assert "came back" in error.text


def test_a_group_that_drains_waits_for_what_an_island_loses() -> None:
    with group_of(dying(3), FakeRunner(LIMITS)) as (group, inbox):
        asked = submitted(group, asks(6))
        assert group.drain(60)
        check(inbox, asked)


def test_islands_that_rest_can_be_lost_all_at_once() -> None:
    with group_of(FakeRunner(LIMITS), FakeRunner(LIMITS)) as (group, inbox):
        check(inbox, submitted(group, asks(2)))
        group.lose(DevicesLost("it does not answer"), "b")
        wait_until(lambda: group.islands == ("a",))
        group.lose(DevicesLost("the proxy server is gone"))
        wait_until(lambda: not group.islands)
        group.add("a", FakeRunner(LIMITS))
        check(inbox, submitted(group, asks(2)))


def test_whoever_leaves_while_the_island_dies_is_not_computed_elsewhere() -> None:
    """What was held back is delivered between the look at what began and its move."""
    inbox, other = Inbox(), FakeRunner(LIMITS)

    def deliver(updates: list[SequenceUpdate]) -> None:
        inbox.deliver(updates)
        if len(updates) > 1:
            group.cancel(updates[0].sequence)

    group = EngineGroup(deliver, partial(Engine, stream_interval_s=60.0))
    group.add("a", dying(9))
    id = group.submit(ask_for(5, 40))
    group.add("b", other)
    assert inbox.end(id) == "cancelled"
    group.close()
    assert not other.launched


def test_an_error_that_is_no_loss_of_devices_ends_its_requests_and_moves_none() -> None:
    """It would go with the request, and end one island after another."""
    broken, other = FakeRunner(LIMITS, fail_result=2), FakeRunner(LIMITS)
    with group_of(broken, other) as (group, inbox):
        ends = [inbox.end(id) for id in submitted(group, asks(2))]
        assert [isinstance(end, SaxError) for end in ends].count(True) == 1
        assert group.failed is not None


def test_a_place_that_was_reserved_on_a_lost_island_is_found_on_another() -> None:
    with group_of(dying(1), FakeRunner(LIMITS)) as (group, inbox):
        request = ask_for(5)
        group.reserve(request)
        group.reserve(request)
        first = group.submit(request, reserved=True)
        inbox.end(first)
        wait_until(lambda: group.islands == ("b",))
        check(inbox, {first: request, group.submit(request, reserved=True): request})
        group.release(request.account)
        assert group.drain(60)


def test_scores_of_a_prompt_come_whole_whenever_the_island_dies() -> None:
    request = ask_for(30, score_from=1)
    for step in (1, 2, 3, 4):
        with group_of(dying(step), FakeRunner(LIMITS)) as (group, inbox):
            id = group.submit(request)
            assert inbox.end(id) == "score"
            assert inbox.results[id][-1].target_logprobs == scores_alone(request), step


def test_the_rest_of_a_request_begins_behind_what_was_delivered() -> None:
    asked = EngineRequest(
        prompt=(1, 2, 3, 4), sampling=ask_for(3).sampling, max_tokens=5, stop_ids=frozenset(),
        score_from=1, score_tops=0, computed=True,
    )  # fmt: skip
    rest = Begun(7, (8, 9), 2).rest_of(asked)
    assert (rest.answer, rest.score_from, rest.computed) == ((8, 9), 3, False)
    assert Begun(7, (8, 9), 3).rest_of(asked).score_from is None
