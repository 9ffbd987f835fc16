"""What breaks a promise when hosts are killed; and two real kills, where there is time."""

from __future__ import annotations

import pytest

from tests.tools.kills.__main__ import main
from tests.tools.kills.asking import Asked, Clients
from tests.tools.kills.killing import deaths, named_lost


def clients(*asked: Asked) -> Clients:
    return Clients("http://127.0.0.1:1", "/sax/test/m", 0, 8, list(asked))


def test_an_answer_and_the_beginning_of_it_are_as_they_should_be() -> None:
    cut = Asked(1.0, "three d", "replica_lost")
    assert clients(Asked(0.0, "three days", "answer"), cut).complaints() == []


def test_a_hang_another_answer_and_another_beginning_are_told() -> None:
    wrong = [
        (Asked(1.0, "three days", "no end", broken=True), "ended with: no end"),
        (Asked(1.0, "four days", "answer"), "2 different answers"),
        (Asked(1.0, "four", "replica_lost"), "begun otherwise"),
    ]
    for one, complaint in wrong:
        (told,) = clients(Asked(0.0, "three days", "answer"), one).complaints()
        assert complaint in told


def test_who_is_lost_is_read_from_what_hosts_and_the_supervisor_say() -> None:
    log = (
        "00:17:07 host 1 (10.0.0.1) has arrived\n"
        "00:17:08 host 0 (10.0.0.0), the primary, is lost: no heartbeat for 3.0 s\n"
        "00:17:09 host 2 (10.0.0.2) of this replica is lost: it left; the replica restarts\n"
    )
    assert named_lost(log) == {0, 2}
    output = (
        "model server: host 2 died (killed by SIGKILL); restarting its 3 hosts in 0.5 s\n"
        "model server: host 1 died (exit code 1); restarting its 3 hosts in 0.5 s\n"
    )
    assert deaths(output) == [2]


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_hosts_that_are_killed_come_back_and_nothing_is_lost() -> None:
    assert main(["--hosts", "2", "--kills", "2"]) == 0
