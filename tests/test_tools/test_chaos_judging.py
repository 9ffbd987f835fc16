"""What is right and what is not, of calls that met a fault; and the arithmetic that tells."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from tests.tools.chaos.pathways.calls import Call
from tests.tools.chaos.pathways.client import RIGHT, WRONG
from tests.tools.chaos.pathways.deeds import after
from tests.tools.chaos.pathways.faults import MOMENTS, ROLES, WAYS, Fault, deal
from tests.tools.chaos.pathways.held import Held, grown, per_process
from tests.tools.chaos.pathways.judging import Blow, judge

KILL = Blow(Fault("worker", "kill", "copy", 1, 0.5), 100.0, 100.5, 103.0)
LOST = "DATA_LOSS: island 1 was lost with all arrays on it"


def call(said: str, *islands: int, name: str = "fetch", took_s: float = 0.5) -> Call:
    return Call(name, islands, 100.2, 100.2 + took_s, said)


WRONGS = [
    (call(WRONG, 0), "wrong numbers"),
    (call(LOST, 0), "an error where none should be"),
    (call("INTERNAL: what is this", 1), "an error of another type"),
    (call("UNTYPED KeyError: 1", 1), "an error of another type"),
    (call(RIGHT, 0, took_s=5.5), "5.5 s without an answer"),
    (call(RIGHT, 1, name="old: fetch"), "a value of an earlier incarnation was read"),
    (call("UNAVAILABLE: gone", 1, name="old: fetch"), "lost in other words"),
    (call(LOST, 0, 1, name="old: copy"), "or for nothing"),
]
RIGHTS = [
    call(RIGHT, 0),
    call(LOST, 1),
    call(LOST, 0, 1, name="copy"),
    call(LOST, 1, 0, name="old: copy"),
    call(RIGHT, 0, 1, name="old: copy"),
    call("UNAVAILABLE: no proxy server", name="connect", took_s=20.0),
    Call("fetch", (0,), 90.0, 99.0, WRONG),  # before the fault: told with the one before
]


def test_what_is_not_right_is_told_and_what_is_right_is_not() -> None:
    told = [(one, judge(KILL, [one], []).complaints, part) for one, part in WRONGS]
    missed = [each for each in told if len(each[1]) != 1 or each[2] not in each[1][0]]
    assert missed == []
    assert [one for one in RIGHTS if judge(KILL, [one], []).complaints] == []


def test_a_manager_that_is_killed_may_cost_nobody_anything() -> None:
    blow = Blow(Fault("manager", "kill", "idle", 1, 0.5), 100.0, 100.5, 103.0)
    (told,) = judge(blow, [], [call(LOST, 1)]).complaints
    assert "an error where none should be" in told


def test_the_time_of_what_stood_still_itself_counts_from_when_it_goes_on() -> None:
    blow = Blow(Fault("client", "stop", "fetch", 1, 1.0), 100.0, 101.0, 103.0)
    slow = call(RIGHT, 0, took_s=2.0)
    assert judge(blow, [slow], []).longest_s == pytest.approx(1.2)
    assert judge(blow, [], [slow]).longest_s == pytest.approx(2.0)


def test_a_pack_has_every_role_way_and_moment_once() -> None:
    every = set(itertools.product(ROLES, WAYS, MOMENTS))
    pack = list(itertools.islice(deal(random.Random(3), 2), len(every)))
    assert {(fault.role, fault.how, fault.moment) for fault in pack} == every


def test_what_grows_is_told_and_what_is_started_late_is_not() -> None:
    steady = [{"proxy": Held(1, threads, 21, 50.0)} for threads in (4, 5, 5, 5, 4, 5)]
    leaking = [{"proxy": Held(2, 5, 20 + files, 50.0)} for files in range(6)]
    ((role, series),) = per_process(steady)
    assert list(grown(role, series)) == []
    ((role, series),) = per_process(leaking)
    assert ["files" in text for text in grown(role, series)] == [True]
    (told,) = grown("manager", [Held(3, 5, 20, 46.0 + moment) for moment in range(20)])
    assert "memory grew by 12 MiB" in told


def test_many_steps_of_a_computation_are_known_at_once() -> None:
    numbers = np.arange(5, dtype=np.uint32)
    slow = numbers.copy()
    for _ in range(37):
        slow = slow * np.uint32(1664525) + np.uint32(1013904223)
    assert np.array_equal(after(37, numbers), slow)
