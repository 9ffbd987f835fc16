from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_server.pathways.protocol import IfrtResponse, InitResponse
from model_server.pathways.proxy.island import (
    Answered,
    ArrayDelivery,
    HandleHolding,
    Island,
    IslandRequest,
    Shipment,
    Shipped,
)
from model_server.pathways.scheduling.answers import NOBODY, Reply
from model_server.pathways.scheduling.handles import DATA_LOSS, INTERNAL, Fault


class ScriptedHost:
    """A host that answers when told to."""

    def __init__(self, device: int) -> None:
        self.description: Any = InitResponse()
        self.description.all_devices.add(id=device)
        self.address = f"host-{device}:1"
        self.ran: list[IslandRequest] = []
        self.answers: list[Answered] = []
        self.shipped: list[Shipped] = []
        self.arrivals: list[Callable[[], None]] = []
        self.failed: list[Fault] = []
        self.closed = False

    def run(self, request: IslandRequest, answered: Answered) -> None:
        self.ran.append(request)
        self.answers.append(answered)

    def ship(self, shipment: Shipment, shipped: Shipped) -> None:
        self.shipped.append(shipped)

    def expect(self, arrival: ArrayDelivery, arrived: Callable[[], None]) -> None:
        self.arrivals.append(arrived)

    def fail_transfer(self, transfer: int, fault: Fault) -> None:
        self.failed.append(fault)

    def forget(self, session: int) -> None:
        self.ran.clear()

    def close(self) -> None:
        self.closed = True


def request(name: bytes = b"work", touches: tuple[int, ...] = ()) -> IslandRequest:
    return IslandRequest(1, 0, name, {}, touches)


def reply(name: str = "") -> Reply:
    response = IfrtResponse()
    response.compile_response.name = name
    return Reply(response.SerializeToString(), {})


@pytest.fixture
def hosts() -> list[ScriptedHost]:
    return [ScriptedHost(0), ScriptedHost(1)]


@pytest.fixture
def island(hosts: list[ScriptedHost]) -> Island:
    made = Island(3)
    made.begin(hosts)
    return made


def test_an_answer_is_there_when_all_hosts_have_answered(
    island: Island, hosts: list[ScriptedHost]
) -> None:
    told: list[Reply | Fault] = []
    island.call(request(), told.append)
    hosts[1].answers[0](reply("said"))
    hosts[1].answers[0](reply("said twice"))
    assert not told
    hosts[0].answers[0](NOBODY)
    assert told == [reply("said")]
    assert island.outstanding == 0


def test_an_answer_that_no_host_gives_is_an_error(
    island: Island, hosts: list[ScriptedHost]
) -> None:
    told: list[Reply | Fault] = []
    island.call(request(), told.append)
    for host in hosts:
        host.answers[0](NOBODY)
    assert told == [Fault(INTERNAL, "no host of the island answered")]


def test_a_loss_answers_everything_once_and_late_answers_are_nothing(
    island: Island, hosts: list[ScriptedHost]
) -> None:
    told: list[Reply | Fault] = []
    for _ in range(3):
        island.call(request(), told.append)
    island.end("killed")
    island.end("killed again")
    assert [isinstance(each, Fault) and each.code for each in told] == [DATA_LOSS] * 3
    assert all(host.closed for host in hosts)
    for host in hosts:
        host.answers[0](reply())
    island.call(request(), told.append)
    assert len(told) == 4
    assert not island.up
    assert len(island.description.all_devices) == 2  # known, if not there


def test_answers_of_an_earlier_incarnation_do_not_answer_the_next(
    hosts: list[ScriptedHost],
) -> None:
    island = Island(0)
    island.begin(hosts[:1])
    island.call(request(), lambda outcome: None)
    island.end("killed")
    island.begin(hosts[1:])
    told: list[Reply | Fault] = []
    island.call(request(), told.append)
    hosts[0].answers[0](reply("old"))
    assert not told
    hosts[1].answers[0](reply("new"))
    assert told == [reply("new")]


def test_what_waits_for_a_program_is_told_when_the_island_is_lost_again(
    hosts: list[ScriptedHost],
) -> None:
    island = Island(0)
    island.programs.note(9, request(b"compile"))
    island.begin(hosts[:1])
    told: list[Reply | Fault] = []
    island.call(request(b"execute", (9,)), told.append)
    assert [each.serialized for each in hosts[0].ran] == [b"compile"]
    island.end("killed")
    assert [isinstance(each, Fault) and each.code for each in told] == [DATA_LOSS]


def test_what_names_an_array_waits_until_all_hosts_have_it(
    island: Island, hosts: list[ScriptedHost]
) -> None:
    told: list[str] = []
    island.expect(ArrayDelivery(1, 5, 70, [0, 1], ""), lambda: told.append("arrived"))
    island.call(request(b"needs it", (4, 5)), lambda outcome: None)
    island.call(request(b"does not", (6,)), lambda outcome: None)
    island.ship(Shipment(1, 5, 71, []), lambda fault: None)
    assert [each.serialized for each in hosts[0].ran] == [b"does not"]
    hosts[0].arrivals[0]()
    assert not hosts[0].shipped
    assert not told
    hosts[1].arrivals[0]()
    assert told == ["arrived"]
    for host in hosts:
        assert [each.serialized for each in host.ran] == [b"does not", b"needs it"]
        assert len(host.shipped) == 1


def test_only_an_array_that_is_expected_goes_astray(
    island: Island, hosts: list[ScriptedHost]
) -> None:
    island.fail_transfer(70, Fault(DATA_LOSS, "lost"))
    assert not hosts[0].failed
    island.expect(ArrayDelivery(1, 5, 70, [0], ""), lambda: None)
    island.fail_transfer(70, Fault(DATA_LOSS, "lost"))
    assert hosts[0].failed == [Fault(DATA_LOSS, "lost")]


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
