from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from model_server.pathways.islands.host import Answered, ArrayDelivery, Errand, Shipment, Shipped
from model_server.pathways.islands.island import Island
from model_server.pathways.protocol.messages import IfrtResponse, InitResponse
from model_server.pathways.scheduling.handles import DATA_LOSS, INTERNAL, Fault
from model_server.pathways.scheduling.merging import NOBODY, Reply


class ScriptedHost:
    """A host that answers when told to."""

    def __init__(self, device: int) -> None:
        self.description: Any = InitResponse()
        self.description.all_devices.add(id=device)
        self.address = f"host-{device}:1"
        self.ran: list[Errand] = []
        self.answers: list[Answered] = []
        self.shipped: list[Shipped] = []
        self.arrivals: list[Callable[[], None]] = []
        self.gone_astray: list[Fault] = []
        self.closed = False

    def run(self, errand: Errand, answered: Answered) -> None:
        self.ran.append(errand)
        self.answers.append(answered)

    def ship(self, shipment: Shipment, shipped: Shipped) -> None:
        self.shipped.append(shipped)

    def expect(self, arrival: ArrayDelivery, arrived: Callable[[], None]) -> None:
        self.arrivals.append(arrived)

    def astray(self, transfer: int, fault: Fault) -> None:
        self.gone_astray.append(fault)

    def forget(self, session: int) -> None:
        self.ran.clear()

    def close(self) -> None:
        self.closed = True


def errand(name: bytes = b"work", touches: tuple[int, ...] = ()) -> Errand:
    return Errand(1, 0, name, {}, touches)


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
    island.call(errand(), told.append)
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
    island.call(errand(), told.append)
    for host in hosts:
        host.answers[0](NOBODY)
    assert told == [Fault(INTERNAL, "no host of the island answered")]


def test_a_loss_answers_everything_once_and_late_answers_are_nothing(
    island: Island, hosts: list[ScriptedHost]
) -> None:
    told: list[Reply | Fault] = []
    for _ in range(3):
        island.call(errand(), told.append)
    island.end("killed")
    island.end("killed again")
    assert [isinstance(each, Fault) and each.code for each in told] == [DATA_LOSS] * 3
    assert all(host.closed for host in hosts)
    for host in hosts:
        host.answers[0](reply())
    island.call(errand(), told.append)
    assert len(told) == 4
    assert not island.up
    assert len(island.description.all_devices) == 2  # known, if not there


def test_answers_of_an_earlier_life_do_not_answer_the_next(hosts: list[ScriptedHost]) -> None:
    island = Island(0)
    island.begin(hosts[:1])
    island.call(errand(), lambda outcome: None)
    island.end("killed")
    island.begin(hosts[1:])
    told: list[Reply | Fault] = []
    island.call(errand(), told.append)
    hosts[0].answers[0](reply("old"))
    assert not told
    hosts[1].answers[0](reply("new"))
    assert told == [reply("new")]


def test_what_waits_for_a_program_is_told_when_the_island_is_lost_again(
    hosts: list[ScriptedHost],
) -> None:
    island = Island(0)
    island.programs.note(9, errand(b"compile"))
    island.begin(hosts[:1])
    told: list[Reply | Fault] = []
    island.call(errand(b"execute", (9,)), told.append)
    assert [each.request for each in hosts[0].ran] == [b"compile"]
    island.end("killed")
    assert [isinstance(each, Fault) and each.code for each in told] == [DATA_LOSS]


def test_what_names_an_array_waits_until_all_hosts_have_it(
    island: Island, hosts: list[ScriptedHost]
) -> None:
    told: list[str] = []
    island.expect(ArrayDelivery(1, 5, 70, [0, 1], ""), lambda: told.append("arrived"))
    island.call(errand(b"needs it", (4, 5)), lambda outcome: None)
    island.call(errand(b"does not", (6,)), lambda outcome: None)
    island.ship(Shipment(1, 5, 71, []), lambda fault: None)
    assert [each.request for each in hosts[0].ran] == [b"does not"]
    hosts[0].arrivals[0]()
    assert not hosts[0].shipped
    assert not told
    hosts[1].arrivals[0]()
    assert told == ["arrived"]
    for host in hosts:
        assert [each.request for each in host.ran] == [b"does not", b"needs it"]
        assert len(host.shipped) == 1


def test_only_an_array_that_is_expected_goes_astray(
    island: Island, hosts: list[ScriptedHost]
) -> None:
    island.astray(70, Fault(DATA_LOSS, "lost"))
    assert not hosts[0].gone_astray
    island.expect(ArrayDelivery(1, 5, 70, [0], ""), lambda: None)
    island.astray(70, Fault(DATA_LOSS, "lost"))
    assert hosts[0].gone_astray == [Fault(DATA_LOSS, "lost")]
