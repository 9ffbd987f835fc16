from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_server.pathways.resources.messages import ANY, Enrol, Missing, TurnedAway
from model_server.pathways.resources.roster import InstanceType, Roster, parse_instance_type
from sax.errors import InvalidRequest
from tests.model_server.refusals import refusal


def enrol(name: str, island: int = ANY, host: int = 0, hosts: int = 1, **more: bool) -> Enrol:
    return Enrol(name, f"{name}:1", island, host, hosts, f"{name}:2", **more)


@pytest.fixture
def roster() -> Roster:
    return Roster(InstanceType("cpu", "", 4), 2, lease_s=2.0)


def come(roster: Roster, said: Enrol, now_s: float = 0.0) -> int:
    """Enrol and be ready; returns the island."""
    assert roster.enrol(said, now_s) is None
    island = roster.island_of(said.incarnation)
    assert island is not None
    roster.start(island)
    assert roster.ready(said.incarnation, 4 // said.hosts, now_s) == ""
    return island


def up(roster: Roster) -> list[bool]:
    return [line.up for line in roster.islands().lines]


def test_workers_take_the_islands_that_are_free(roster: Roster) -> None:
    assert [come(roster, enrol("a")), come(roster, enrol("b"))] == [0, 1]
    assert up(roster) == [True, True]
    assert isinstance(roster.enrol(enrol("c"), 0.0), Missing)


def test_devices_are_numbered_by_island_whoever_comes_first(roster: Roster) -> None:
    come(roster, enrol("late", island=1))
    come(roster, enrol("early", island=0))
    assert roster.placed(1)["late"].first_device == 4
    assert roster.placed(0)["early"].first_device == 0


def test_an_island_of_two_hosts_starts_when_both_are_there(roster: Roster) -> None:
    told = roster.enrol(enrol("a", island=1, host=1, hosts=2), 0.0)
    assert told == Missing("host 0 of island 1")
    assert roster.enrol(enrol("b", island=1, host=0, hosts=2), 0.0) is None
    placed = roster.placed(1)
    assert {each.coordinator for each in placed.values()} == {"b:2"}
    assert {each.devices for each in placed.values()} == {2}
    roster.start(1)
    roster.ready("a", 2, 0.0)
    assert up(roster) == [False, False]
    roster.ready("b", 2, 0.0)
    assert up(roster) == [False, True]
    assert roster.islands().lines[1].addresses == ["b:1", "a:1"]


def test_hosts_without_a_number_of_an_island_find_each_other(roster: Roster) -> None:
    roster.enrol(enrol("a", host=0, hosts=2), 0.0)
    assert roster.enrol(enrol("b", host=1, hosts=2), 0.0) is None
    assert roster.island_of("a") == roster.island_of("b") == 0


def test_a_silent_worker_is_gone_when_its_lease_ends(roster: Roster) -> None:
    come(roster, enrol("a"), 10.0)
    roster.heard("a", 11.0)
    assert roster.silent(12.9) == []
    assert roster.silent(13.1) == ["a"]
    assert roster.gone("a", "silent", 13.1) == []
    assert up(roster) == [False, False]
    assert roster.islands().lines[0].note == "host 0 was lost: silent"


def test_a_time_in_which_nobody_listened_ends_no_lease(roster: Roster) -> None:
    come(roster, enrol("a"), 10.0)
    roster.stood_still(60.0, 71.0)
    assert roster.silent(71.9) == []
    assert roster.silent(72.1) == ["a"]


def test_the_other_hosts_of_a_lost_island_must_end(roster: Roster) -> None:
    for host in range(2):
        roster.enrol(enrol(f"h{host}", island=0, host=host, hosts=2), 0.0)
    roster.start(0)
    assert roster.gone("h1", "killed", 1.0) == ["h0"]
    assert roster.island_of("h0") is None
    for host in range(2):
        roster.enrol(enrol(f"n{host}", island=0, host=host, hosts=2), 2.0)
    assert set(roster.placed(0)) == {"n0", "n1"}


def test_a_host_lost_before_its_island_started_is_only_missing(roster: Roster) -> None:
    roster.enrol(enrol("a", island=0, host=0, hosts=2), 0.0)
    assert roster.gone("a", "killed", 1.0) == []
    assert isinstance(roster.enrol(enrol("b", island=0, host=1, hosts=2), 2.0), Missing)
    assert roster.enrol(enrol("c", island=0, host=0, hosts=2), 2.0) is None


def test_a_worker_that_was_cut_off_comes_back_as_what_it_is(roster: Roster) -> None:
    come(roster, enrol("a", island=1))
    roster.gone("a", "silent", 5.0)
    assert roster.enrol(enrol("a", island=1, started=True), 6.0) is None
    assert roster.placed(1)["a"].first_device == 4


def test_workers_that_fit_nowhere_are_turned_away_with_a_reason(roster: Roster) -> None:
    come(roster, enrol("a", island=0))
    for said, why in (
        (enrol("x", island=7), "the islands are 0 to 1"),
        (enrol("x", host=2, hosts=2), "host 2 of 2"),
        (enrol("x", host=0, hosts=5), "host 0 of 5"),
        (enrol("x", island=0, host=1, hosts=2), "the others say 1"),
    ):
        told = roster.enrol(said, 0.0)
        assert isinstance(told, TurnedAway), why
        assert why in told.reason
        assert why in roster.happenings[-1].text


def test_a_worker_with_too_many_devices_must_end(roster: Roster) -> None:
    roster.enrol(enrol("a"), 0.0)
    assert "--instance_type" in roster.ready("a", 5, 0.0)
    assert "not enrolled" in roster.ready("stranger", 4, 0.0)
    assert up(roster) == [False, False]


def test_only_the_last_happenings_are_kept(roster: Roster) -> None:
    for at in range(500):
        roster.tell(f"{at}", at)
    assert len(roster.happenings) == 200
    assert roster.happenings[-1].text == "499"


@given(
    st.lists(st.tuples(st.sampled_from("cgr"), st.integers(0, 3), st.integers(0, 1)), max_size=60)
)
def test_no_two_workers_ever_have_one_place(steps: list[tuple[str, int, int]]) -> None:
    """c: a worker comes, g: one goes, r: one is ready."""
    roster, count = Roster(InstanceType("cpu", "", 4), 2, 2.0), 0
    names: list[str] = []
    for step, which, host in steps:
        if step == "c":
            count += 1
            names.append(f"w{count}")
            roster.enrol(enrol(names[-1], host=host, hosts=2), float(count))
        elif names and step == "g":
            roster.gone(names[which % len(names)], "test", float(count))
        elif names:
            roster.ready(names[which % len(names)], 2, float(count))
        lines = roster.islands().lines
        there = [each for line in lines for each in line.incarnations]
        assert len(set(there)) == len(there)
        assert all(len(line.incarnations) == 2 for line in lines if line.up)
        assert {each for each in names if roster.island_of(each) is not None} == set(there)


def test_islands_are_made_of_so_many_devices() -> None:
    means = {
        "cpu:2": InstanceType("cpu", "", 2),
        "gpu:8": InstanceType("gpu", "", 8),
        "tpuv5e:4x8": InstanceType("tpu", "v5e", 32),
        "tpuv6e:2x2x2": InstanceType("tpu", "v6e", 8),
        "tpuv3:2x2": InstanceType("tpu", "v3", 8),
        " TPUv5p:4 ": InstanceType("tpu", "v5p", 4),
    }
    assert {text: parse_instance_type(text) for text in means} == means


def test_what_is_no_type_is_refused() -> None:
    for text in ("", "cpu", "cpu:", "cpu:x", "npu:2", "tpuv5e:4x", "cpu:0"):
        told = refusal(parse_instance_type, text)
        assert (told.kind, "--instance_type" in told.text) == (InvalidRequest, True), text
