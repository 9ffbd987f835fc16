"""Who holds requests, for how long that counts, and what they are told."""

from __future__ import annotations

import pytest

from admin_server.assignment.report import ModelReport
from admin_server.cell.demand import SILENCE_S, HeldRequests, Prospect, prospect
from sax.errors import InvalidRequest
from sax.types import Autoscaling, ModelSpec, ReplicaStatus, ServableStatus
from tests.each_case import each_case

M = "/sax/test/m"
SPEC = ModelSpec(
    model_id=M, model_path="llama", checkpoint="/one", replicas=1, autoscaling=Autoscaling()
)


def report(*replicas: ReplicaStatus, ready: frozenset[str] = frozenset()) -> ModelReport:
    return ModelReport("", replicas, ready, 0)


def test_what_callers_hold_is_added_up() -> None:
    demand = HeldRequests()
    demand.report(M, "a", 2, 0.0)
    demand.report(M, "b", 3, 1.0)
    assert demand.held(M, 1.0) == 5
    assert demand.held("/sax/test/other", 1.0) == 0
    assert demand.all_held(1.0) == {M: 5}


def test_what_a_caller_says_replaces_what_it_said_before() -> None:
    demand = HeldRequests()
    demand.report(M, "a", 2, 0.0)
    demand.report(M, "a", 1, 0.5)
    assert demand.held(M, 1.0) == 1
    demand.report(M, "a", 0, 1.0)
    assert demand.held(M, 1.0) == 0


def test_a_silent_caller_is_forgotten_and_the_others_are_not() -> None:
    demand = HeldRequests()
    demand.report(M, "a", 2, 0.0)
    demand.report(M, "b", 3, 1.0)
    demand.report(M, "a", 2, 2.0)
    assert demand.held(M, 1.0 + SILENCE_S) == 2
    assert demand.held(M, 2.0 + SILENCE_S) == 0


def test_a_model_that_is_gone_is_forgotten() -> None:
    demand = HeldRequests()
    demand.report(M, "a", 2, 0.0)
    demand.forget(M)
    assert demand.held(M, 0.0) == 0


@each_case(
    "caller, waiting, param",
    [("", 1, "caller"), ("x" * 101, 1, "caller"), ("a", -1, "waiting"), ("a", 10**7, "waiting")],
)
def test_nonsense_is_refused_by_field(caller: str, waiting: int, param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        HeldRequests().report(M, caller, waiting, 0.0)
    assert refusal.value.param == param


LOADING = ReplicaStatus("a:1", ServableStatus.LOADING, "loading: reading weights 1 of 2")
FAILED = ReplicaStatus("a:1", ServableStatus.FAILED, "load failed: truncated; retry 1 at 10:00:00")
NOWHERE = ReplicaStatus("", ServableStatus.NONE, "no model server has joined this cell")
READY = ReplicaStatus("a:1", ServableStatus.LOADED)


@each_case(
    "wanted, known, told",
    [
        (0, report(), Prospect(True, "its first replica has been requested")),
        (1, None, Prospect(True, "its first replica has been requested")),
        (1, report(), Prospect(True, "its first replica has been requested")),
        (1, report(LOADING), Prospect(True, LOADING.reason)),
        (2, report(FAILED, LOADING), Prospect(True, LOADING.reason)),
        (1, report(FAILED), Prospect(False, FAILED.reason)),
        (1, report(NOWHERE), Prospect(False, NOWHERE.reason)),
        (1, report(READY, ready=frozenset({"a:1"})), Prospect(True, "a replica is ready")),
    ],
)
def test_requests_are_worth_holding_while_a_replica_is_coming(
    wanted: int, known: ModelReport | None, told: Prospect
) -> None:
    assert prospect(SPEC, wanted, known) == told


def test_a_model_that_is_not_autoscaled_is_waited_for_as_ever() -> None:
    plain = ModelSpec(model_id=M, model_path="llama", checkpoint="/one", replicas=1)
    assert not prospect(plain, 1, report(LOADING)).starting
