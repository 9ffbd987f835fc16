"""The counts of a whole cell, from what its servers report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from admin_server.assignment.autoscaler import ScalingTiming
from admin_server.assignment.report import ModelReport
from admin_server.assignment.seen import Seen, SeenServer, UnloadAction
from admin_server.cell.scaler import SILENCE_S, HeldRequests, Prospect, Scaler, prospect
from admin_server.ledger.state import CellState
from sax.errors import InvalidRequest
from sax.types import (
    Autoscaling,
    JoinedServer,
    ModelSpec,
    ReplicaStatus,
    ServableInfo,
    ServableStatus,
    ServerInfo,
)
from tests.each_case import each_case

M, PLAIN = "/sax/test/m", "/sax/test/plain"
BOUNDS = Autoscaling(min_replicas=0, max_replicas=4, target_queue=2)
TIMING = ScalingTiming(up_s=2, down_s=4, idle_s=8)


def spec(model_id: str = M, **changes) -> ModelSpec:
    settings = {"model_path": "llama", "checkpoint": "/one", "replicas": 1, **changes}
    return ModelSpec(model_id=model_id, **settings)


def cell(*specs: ModelSpec) -> CellState:
    return CellState("/sax/test", {each.model_id: each for each in specs})


def held(status: ServableStatus = ServableStatus.LOADED, **figures: int) -> ServableInfo:
    return ServableInfo(model_id=M, status=status, **figures)


def seen(*servables: ServableInfo, **changes) -> Seen:
    """Each on a server of its own: a, b, c ..."""
    servers = {
        name: SeenServer(JoinedServer(ServerInfo(address=name), 0.0, (servable,)))
        for name, servable in zip("abcdef", servables, strict=False)
    }
    return Seen(servers, **changes)


def count(scaler: Scaler, state: CellState, view: Seen, now: float) -> int:
    return scaler.scaled(state, view, now).models[M].replicas


def test_a_cell_without_autoscaling_is_given_back_as_it_is() -> None:
    state = cell(spec(PLAIN, replicas=3))
    scaler = Scaler(TIMING)
    assert scaler.scaled(state, seen(held()), 1.0) is state
    assert (scaler.wanted(state.models[PLAIN]), scaler.reason(state.models[PLAIN])) == (3, "")


def test_only_the_count_of_an_autoscaled_model_is_replaced() -> None:
    state = cell(spec(autoscaling=BOUNDS, replicas=9), spec(PLAIN))
    scaled = Scaler(TIMING).scaled(state, seen(), 1.0)
    assert scaled.models[M] == replace(state.models[M], replicas=4)
    assert scaled.models[PLAIN] is state.models[PLAIN]


def test_as_long_as_nothing_moves_the_same_state_is_given_back() -> None:
    state, scaler = cell(spec(autoscaling=BOUNDS)), Scaler(TIMING)
    first = scaler.scaled(state, seen(held(running=1)), 1.0)
    assert scaler.scaled(state, seen(held(running=2)), 2.0) is first


def test_the_queues_of_all_ready_replicas_are_added_up() -> None:
    state, scaler = cell(spec(autoscaling=BOUNDS, replicas=2)), Scaler(TIMING)
    view = seen(held(queued=1, running=8), held(queued=5, running=8))
    assert [count(scaler, state, view, now) for now in range(4)] == [2, 2, 2, 3]
    assert "queue of 6 for 2 replicas" in scaler.reason(state.models[M])


def test_requests_that_no_look_found_running_keep_a_model() -> None:
    state, scaler = cell(spec(autoscaling=BOUNDS)), Scaler(TIMING)
    asked = [count(scaler, state, seen(held(arrived=now // 4)), now) for now in range(40)]
    assert asked == [1] * 40
    silent = [count(scaler, state, seen(held(arrived=9)), now) for now in range(40, 50)]
    assert silent[-1] == 0


def test_a_replica_that_leaves_or_loads_has_no_say() -> None:
    state, scaler = cell(spec(autoscaling=BOUNDS)), Scaler(TIMING)
    view = seen(
        held(queued=2, running=8),
        held(queued=50),
        held(ServableStatus.LOADING, queued=50),
        pending={("b", M): (UnloadAction("b", M, "test"),)},
    )
    assert [count(scaler, state, view, now) for now in range(6)] == [1] * 6


def test_a_new_leader_goes_on_from_the_replicas_that_it_finds() -> None:
    state = cell(spec(autoscaling=BOUNDS))
    scaler = Scaler(TIMING, [M], adopts_until_s=10.0)
    assert scaler.scaled(state, seen(), 1.0).models[M].replicas == 0
    assert count(scaler, state, seen(held(), held()), 2.0) == 2
    assert scaler.reason(state.models[M]) == (
        "2 found when this admin server began to lead: 2 wanted"
    )
    late = seen(held(), held(), held(ServableStatus.LOADING))
    assert count(scaler, state, late, 9.0) == 3
    assert count(scaler, state, seen(held()), 9.9) == 3
    assert count(scaler, state, late, 10.0) == 3


def test_a_new_leader_hears_held_requests_at_once() -> None:
    state = cell(spec(autoscaling=BOUNDS))
    scaler = Scaler(TIMING, [M], adopts_until_s=10.0)
    assert count(scaler, state, seen(), 1.0) == 0
    scaler.report(state.models[M], "gateway", 1, 1.5)
    assert count(scaler, state, seen(), 2.0) == 1


def test_a_publish_begins_with_its_replicas_within_the_bounds() -> None:
    scaler = Scaler(TIMING, [], adopts_until_s=10.0)
    assert count(scaler, cell(spec(autoscaling=BOUNDS, replicas=3)), seen(), 1.0) == 3
    assert count(Scaler(TIMING), cell(spec(autoscaling=BOUNDS, replicas=0)), seen(), 1.0) == 0


def test_an_update_of_the_replicas_moves_the_count_there() -> None:
    scaler = Scaler(TIMING)
    assert count(scaler, cell(spec(autoscaling=BOUNDS)), seen(), 1.0) == 1
    assert count(scaler, cell(spec(autoscaling=BOUNDS, replicas=3)), seen(), 1.1) == 3


def test_switched_off_the_published_count_holds_again() -> None:
    scaler = Scaler(TIMING)
    assert count(scaler, cell(spec(autoscaling=BOUNDS, replicas=9)), seen(), 1.0) == 4
    off = cell(spec(replicas=9))
    assert scaler.scaled(off, seen(), 2.0) is off
    assert (scaler.wanted(off.models[M]), scaler.reason(off.models[M])) == (9, "")


def test_before_it_looked_the_count_is_within_the_bounds() -> None:
    scaler = Scaler(TIMING)
    model = spec(autoscaling=BOUNDS, replicas=9)
    assert (scaler.wanted(model), scaler.reason(model)) == (
        4,
        "published with 9: 4 wanted",
    )


def test_rounds_that_follow_each_other_fast_look_once_but_demand_is_heard_at_once() -> None:
    state, scaler = cell(spec(autoscaling=BOUNDS, replicas=0)), Scaler(TIMING)
    first = scaler.scaled(state, seen(), 1.0)
    assert scaler.scaled(state, seen(held(running=1)), 1.1) is first
    scaler.report(state.models[M], "gateway", 1, 1.15)
    assert count(scaler, state, seen(), 1.2) == 1


def test_what_is_held_for_another_kind_of_model_is_not_kept() -> None:
    scaler = Scaler(TIMING)
    scaler.report(spec(PLAIN), "gateway", 7, 1.0)
    assert scaler.demand.all_held(1.0) == {}


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
