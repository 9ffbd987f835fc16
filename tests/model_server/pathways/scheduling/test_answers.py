from __future__ import annotations

from model_server.pathways.protocol import IfrtResponse, InitResponse
from model_server.pathways.scheduling.answers import Reply, described, merged


def reply(code: int = 0, data: bytes | None = None, **fields: bool) -> Reply:
    response = IfrtResponse()
    response.response_metadata.status.code = code
    response.is_array_deleted_response.SetInParent()
    for name, value in fields.items():
        setattr(response.is_array_deleted_response, name, value)
    return Reply(response.SerializeToString(), {} if data is None else {5: data})


def test_the_answer_of_the_only_host_is_passed_on_as_it_is() -> None:
    only = Reply(b"not even parsed", {1: b"x"})
    assert merged([only]) is only


def test_the_worst_status_counts() -> None:
    bad = reply(13)
    assert merged([reply(), bad, reply()]) == bad
    assert merged([reply(data=b"1"), bad]) == bad


def test_data_comes_from_the_host_that_holds_it() -> None:
    holder = reply(data=b"shard")
    assert merged([reply(), holder]) == holder
    assert merged([holder, reply(data=b"later")]) == holder


def test_without_data_the_answer_that_says_most_counts() -> None:
    says = reply(deleted=True)
    assert merged([reply(), says]) == says
    first = reply()
    assert merged([first, reply()]) is first


def test_hosts_of_an_island_are_described_as_one() -> None:
    def host(*devices: int) -> object:
        made = InitResponse(platform_name="cpu", process_index=devices[0])
        for device in devices:
            made.all_devices.add(id=device, memory_ids=[device])
            made.memories.add(id=device, device_ids=[device])
        made.addressable_device_ids.extend(devices)
        made.primary_device_ids.extend(devices)
        return made

    both = described([host(2, 3), host(0, 1), host(0, 1)])
    assert [device.id for device in both.all_devices] == [0, 1, 2, 3]
    assert [memory.id for memory in both.memories] == [0, 1, 2, 3]
    assert sorted(both.addressable_device_ids) == [0, 1, 2, 3]
    assert (both.platform_name, both.process_index) == ("cpu", 0)
