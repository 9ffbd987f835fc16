from __future__ import annotations

import pytest

from model_server.pathways import protocol as messages
from model_server.pathways.protocol import IfrtRequest, IfrtResponse, Serialized
from model_server.pathways.scheduling.summary import TABLE, How, answered_handles, summarise
from sax.errors import InvalidRequest
from tests.model_server.pathways import requests


def test_every_kind_of_the_installed_client_has_its_row() -> None:
    assert set(TABLE) == set(messages.REQUESTS)


def test_rows_name_fields_that_exist() -> None:
    for kind, row in TABLE.items():
        body = IfrtRequest.DESCRIPTOR.fields_by_name[kind].message_type.fields_by_name
        answer = IfrtResponse.DESCRIPTOR.fields_by_name[messages.RESPONSES[kind]]
        named = {*row.reads, *row.makes, *row.destroys, *filter(None, [row.fetches])}
        assert named <= set(body), kind
        assert set(row.answers) <= set(answer.message_type.fields_by_name), kind


def test_an_empty_request_of_each_kind_has_a_summary() -> None:
    for kind in TABLE:
        empty = IfrtRequest()
        getattr(empty, kind).SetInParent()
        if kind in _WITH_SHARDING:
            with pytest.raises(InvalidRequest, match="use one of|StableHLO"):
                summarise(empty)
        else:
            assert summarise(empty).response == messages.RESPONSES[kind]


_WITH_SHARDING = {
    "make_array_from_host_buffer_request",
    "assemble_array_from_single_device_arrays_request",
    "compile_request",
}


def test_a_put_names_its_buffer_its_device_and_its_array() -> None:
    summary = summarise(requests.put(array=5, device=3, buffer=9, op_id=77))
    assert (summary.op_id, summary.makes, summary.buffers, summary.devices) == (
        77,
        (5,),
        (9,),
        (3,),
    )
    assert not summary.counted


def test_handles_that_the_client_does_not_choose_come_with_the_answer() -> None:
    first = requests.execute(1, [2, 3], [])
    later = requests.execute(1, [2, 3], [4])
    assert summarise(first).counted
    assert not summarise(later).counted
    assert summarise(later).reads == (1, 2, 3)
    answer = IfrtResponse().loaded_executable_execute_response
    answer.status_handle = 8
    answer.outputs.add(array_handle=9)
    assert answered_handles(answer, summarise(first).row) == (8, 9)


def test_what_is_destroyed_is_read_as_well() -> None:
    summary = summarise(requests.request("destruct_array", array_handle=[4, 5]))
    assert summary.reads == summary.destroys == (4, 5)
    assert summary.row.how is How.SPLIT


def test_a_program_is_where_its_devices_are() -> None:
    made = requests.request("compile", compile_options=requests.options([2, 3, 3]))
    assert summarise(made).devices == (2, 3)


def test_a_call_in_place_of_a_program_is_where_its_devices_are() -> None:
    made = requests.request("compile", program=requests.call("f", [3, 2, 3]))
    assert summarise(made).devices == (3, 2)
    made.compile_request.program.data = made.compile_request.program.data[:-1]
    with pytest.raises(InvalidRequest, match="malformed call"):
        summarise(made)
    other = messages.CustomCallProgramProto(type="tensorflow").SerializeToString()
    made.compile_request.program.data = other
    with pytest.raises(InvalidRequest, match="jax_colocated_python_v0.0.1 is known here"):
        summarise(made)


def test_devices_are_read_from_shardings() -> None:
    for sharding, devices in ((requests.on_device(3), (3,)), (requests.over([2, 1]), (2, 1))):
        made = requests.request("make_error_arrays", array_specs=[requests.spec(sharding)])
        assert summarise(made).devices == devices


def test_unknown_and_malformed_requests_are_refused_in_words() -> None:
    with pytest.raises(InvalidRequest, match="does not know it"):
        summarise(IfrtRequest())
    strange = Serialized(type_name="IfrtIrCompileOptions", data=b"")
    with pytest.raises(InvalidRequest, match="StableHLO"):
        summarise(requests.request("compile", compile_options=strange))
    torn = requests.options([1])
    torn.data = torn.data[:-1]
    with pytest.raises(InvalidRequest, match="malformed"):
        summarise(requests.request("compile", compile_options=torn))
