from __future__ import annotations

import pytest

from model_server.pathways.scheduling.handles import (
    ALWAYS,
    DATA_LOSS,
    INVALID,
    NOT_FOUND,
    UNAVAILABLE,
    UNIMPLEMENTED,
    Fault,
    HandleTable,
    IslandIncarnation,
    Parts,
    first_made,
)
from model_server.pathways.scheduling.routes import (
    Across,
    Fallback,
    IslandTopology,
    Split,
    Whole,
    route,
)
from model_server.pathways.scheduling.summary import summarise
from tests.model_server.pathways import requests

HERE, THERE = IslandIncarnation(0, 7), IslandIncarnation(1, 2)
TOPOLOGY = IslandTopology({0: 0, 1: 0, 2: 1, 3: 1}, {0: 7, 1: 2})


@pytest.fixture
def table() -> HandleTable:
    made = HandleTable()
    made.note((1, 2), HERE)
    made.note((11, 12), THERE)
    made.note((100,), IslandIncarnation(0, ALWAYS))
    return made


def routed(request: object, table: HandleTable, topology: IslandTopology = TOPOLOGY) -> object:
    return route(summarise(request), table, topology)


def test_a_put_goes_where_its_device_is(table: HandleTable) -> None:
    assert routed(requests.put(5, device=1, buffer=1), table) == Whole(HERE)
    assert routed(requests.put(5, device=3, buffer=1), table) == Whole(THERE)


def test_a_device_that_no_island_has_is_named(table: HandleTable) -> None:
    fault = routed(requests.put(5, device=9, buffer=1), table)
    assert isinstance(fault, Fault)
    assert fault.code == INVALID
    assert "device 9" in fault.text


def test_a_program_goes_where_it_and_its_arguments_are(table: HandleTable) -> None:
    assert routed(requests.execute(100, [1, 2], [3]), table) == Whole(HERE)


def test_one_program_over_two_islands_is_refused_in_words(table: HandleTable) -> None:
    compile_ = requests.request("compile", compile_options=requests.options([0, 2]))
    for request in (requests.execute(100, [1, 11], [3]), compile_):
        fault = routed(request, table)
        assert isinstance(fault, Fault)
        assert fault.code == UNIMPLEMENTED
        assert "islands 0 and 1: run one per island" in fault.text


def test_nobody_reaches_a_handle_that_is_not_in_its_table(table: HandleTable) -> None:
    other = HandleTable()
    for request in (
        requests.execute(100, [1], [3]),
        requests.request("copy_to_host_buffer", array_handle=1),
        requests.request("copy_arrays", array_handles=[1], device_ids=[0]),
    ):
        fault = routed(request, other)
        assert isinstance(fault, Fault)
        assert fault.code == NOT_FOUND
    assert routed(requests.request("destruct_array", array_handle=[1]), other) == Split(
        {}, other.home(1)
    )


def test_arrays_of_an_earlier_incarnation_of_an_island_are_lost(table: HandleTable) -> None:
    back = IslandTopology(TOPOLOGY.islands, {0: 8, 1: 2})
    fault = routed(requests.execute(100, [1], [3]), table, back)
    assert isinstance(fault, Fault)
    assert fault.code == DATA_LOSS
    assert "make the array again" in fault.text


def test_programs_outlive_their_island(table: HandleTable) -> None:
    back = IslandTopology(TOPOLOGY.islands, {0: 8, 1: 2})
    assert routed(requests.execute(100, [], [3]), table, back) == Whole(IslandIncarnation(0, 8))


def test_an_island_that_is_down_answers_for_all_its_arrays(table: HandleTable) -> None:
    down = IslandTopology(TOPOLOGY.islands, {1: 2})
    for request in (requests.execute(100, [1], [3]), requests.put(5, device=0, buffer=1)):
        fault = routed(request, table, down)
        assert isinstance(fault, Fault)
        assert (fault.code, "other islands" in fault.text) == (DATA_LOSS, True)
    assert routed(requests.put(5, device=2, buffer=1), table, down) == Whole(THERE)


def test_what_was_never_made_answers_with_its_own_error(table: HandleTable) -> None:
    fault = Fault(8, "out of memory")
    table.note((5,), fault)
    assert routed(requests.request("copy_to_host_buffer", array_handle=5), table) == fault
    assert routed(requests.request("check_value_ready", value_handles=[1, 5]), table) == Split(
        {0: (1,)}, fault
    )


def test_waiting_and_destroying_go_in_parts_to_each_island(table: HandleTable) -> None:
    for kind, field in (("check_value_ready", "value_handles"), ("destruct_array", "array_handle")):
        request = requests.request(kind, **{field: [11, 1, 12, 2]})
        assert routed(request, table) == Split({1: (11, 12), 0: (1, 2)})


def test_a_future_of_several_islands_is_asked_at_those_that_are_up(table: HandleTable) -> None:
    table.note((50,), Parts(((0, (60,)), (1, (61,)))))
    table.note((51,), Parts(()))
    ask = requests.request("check_future", future_handle=50)
    assert routed(ask, table) == Split({0: (60,), 1: (61,)})
    assert routed(ask, table, IslandTopology(TOPOLOGY.islands, {1: 2})) == Split({1: (61,)})
    assert routed(requests.request("check_future", future_handle=51), table) == Split({})
    fault = routed(requests.request("copy_to_host_buffer", array_handle=50), table)
    assert isinstance(fault, Fault)
    assert "only check_future" in fault.text


def test_copies_stay_on_an_island_or_go_to_another(table: HandleTable) -> None:
    def copy(arrays: list[int], devices: list[int]) -> object:
        request = requests.request("copy_arrays", array_handles=arrays, device_ids=devices)
        return routed(request, table)

    assert copy([1, 2], [1]) == Whole(HERE)
    assert copy([1, 2], [3]) == Across(THERE, (HERE, HERE))
    assert copy([1, 11], [3]) == Across(THERE, (HERE, THERE))
    assert copy([11], []) == Whole(THERE)


def test_what_any_island_can_answer_needs_one(table: HandleTable) -> None:
    ask = requests.request("get_default_device_assignment", num_replicas=1)
    assert routed(ask, table) == Whole(HERE)
    fault = routed(ask, table, IslandTopology({}, {}))
    assert isinstance(fault, Fault)
    assert fault.code == UNAVAILABLE


def test_handles_of_different_requests_never_meet() -> None:
    table = HandleTable()
    first, second = table.next_made(), table.next_made()
    assert (first, second) == (first_made(0), first_made(1))
    assert second - first >= 1 << 20
    assert first_made(1 << 40) < 1 << 63


def test_a_table_keeps_nothing_of_what_is_dropped(table: HandleTable) -> None:
    table.drop((1, 2, 11, 12, 100, 999))
    assert len(table) == 0


def test_another_island_stands_in_where_only_the_kind_of_device_matters(table: HandleTable) -> None:
    ask = requests.request("get_default_layout", device_id=3)
    assert routed(ask, table) == Whole(THERE)
    assert routed(ask, table, IslandTopology(TOPOLOGY.islands, {0: 7})) == Fallback(HERE, 0)
    assert isinstance(routed(ask, table, IslandTopology(TOPOLOGY.islands, {})), Fault)
