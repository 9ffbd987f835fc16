"""Which objects are made and deleted: stories of single decisions, and the laws of all of them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admin_server.provisioning.cluster import JOBSET, LEADER_WORKER_SET
from admin_server.provisioning.decision import (
    Create,
    Decision,
    Delete,
    Setback,
    Setbacks,
    Situation,
    decide,
)
from admin_server.provisioning.object_names import cell_labels
from admin_server.provisioning.present import Present, describe_pods, read_present
from admin_server.provisioning.provisioner import Steadiness
from admin_server.provisioning.sets import SetServers
from admin_server.provisioning.templates import object_for
from sax.names import CellId
from sax.need import Need
from sax.types import ModelSpec
from tests.admin_server.provisioning.template_files import jobset, leader_worker_set, template
from tests.each_case import each_case

CELL = CellId("test")
SMALL = template(jobset("small", hosts=1))
LARGE = template(leader_worker_set("large", hosts=4))
M = "/sax/test/m"
IDLE = SetServers(("h:1",))
BUSY = SetServers(("h:1",), idle=False)
UNHEARD = SetServers(("h:1",), idle=False, unheard=True)


def spec(model_id: str = M, replicas: int = 1) -> ModelSpec:
    return ModelSpec(model_id=model_id, model_path="x", checkpoint="c", replicas=replicas)


def present(name: str = "small-m-0", model_id: str = M, **changes: Any) -> Present:
    settings = {"kind": JOBSET, "template": "small", "devices": 4, **changes}
    return Present(name=name, uid=f"uid of {name}", model_id=model_id, **settings)


def situation(lacking: int = 0, /, *there: Present, **changes: Any) -> Situation:
    """One model that lacks so many replicas."""
    settings: dict[str, Any] = {
        "models": {M: spec()},
        "planned": {M},
        "short": {M: lacking} if lacking else {},
        "present": there,
        "sets": {},
        "templates": (SMALL, LARGE),
        "limit": 10,
        "now": 1000.0,
        **changes,
    }
    return Situation(**settings)


def told(decision: Decision) -> list[str]:
    """The actions, in short."""
    return [
        f"+{action.template.name}" if isinstance(action, Create) else f"-{action.present.name}"
        for action in decision.actions
    ]


A, B = present("a"), present("b", made_at_s=9.0)
FAILED = present("f", failure="it failed: no image")


@each_case(
    "at, actions",
    [
        (situation(0), []),
        (situation(2), ["+small", "+small"]),
        (situation(2, A), ["+small"]),  # it is on its way
        (situation(1, A, B), ["-b"]),  # the last that was asked for
        (situation(1, A, B, sets={"b": IDLE}), ["-a"]),  # what never came goes first
        (situation(0, A, sets={"a": BUSY}), []),
        (situation(0, A, sets={"a": IDLE}), ["-a"]),
        (situation(1, A, sets={"a": IDLE}), []),  # of no use, but another would be none either
        (situation(1, A, sets={"a": UNHEARD}), []),
        (situation(0, A, sets={"a": UNHEARD}), []),
        (situation(1, replace(A, leaving=True)), ["+small"]),
        (situation(1, FAILED), ["-f", "+small"]),
        (situation(0, FAILED), ["-f"]),
        (situation(1, FAILED, sets={"f": BUSY}), ["+small"]),  # somebody still uses it
        (situation(1, A, sets={"a": replace(IDLE, refused=True)}), ["-a", "+large"]),
        (situation(1, A, sets={"a": IDLE}, needs={M: Need(devices=8)}), ["-a", "+large"]),
        (situation(1, needs={M: Need(devices=8)}), ["+large"]),
        (situation(1, too_small={M: frozenset({"small"})}), ["+large"]),
        (situation(3, A, limit=2), ["+small"]),
        (situation(1, replace(A, leaving=True), limit=1), []),  # it still takes its room
        (situation(0, present("o", "/sax/test/old")), ["-o"]),
        (situation(0, present("o", "/sax/test/old"), sets={"o": BUSY}), []),
        (situation(0, A, may_delete=False), []),
        (situation(1, may_create=False), []),
        (situation(1, planned=()), []),  # published a moment ago
        (situation(0, A, planned=()), []),
        (situation(1, setbacks={M: Setback(1, "no", 1001.0)}), []),
        (situation(1, setbacks={M: Setback(1, "no", 1000.0)}), ["+small"]),
        (situation(1, FAILED, setbacks={M: Setback(1, "no", 1001.0)}), []),
    ],
)
def test_one_decision(at, actions):
    assert told(decide(at)) == actions


@each_case(
    "at, words",
    [
        (situation(1), "JobSet small-m-"),
        (situation(1, replace(A, made_at_s=960.0)), "a was created 40 s ago; its pods are not"),
        (situation(1, replace(A, held_up="is suspended")), "ago and is suspended"),
        (situation(1, A, sets={"a": IDLE}), "h:1 has joined but was not chosen"),
        (situation(1, limit=0), "--kubernetes_limit is 0"),
        (situation(1, templates=()), "no template of model servers"),
        (situation(1, setbacks={M: Setback(2, "no image", 1001.0)}), "no image; try 3 at 00:16:41"),
        (situation(1, may_create=False), "has just become the leader"),
    ],
)
def test_who_waits_is_told_why(at, words):
    (note,) = decide(at).notes[M]
    assert words in note


@each_case(
    "at, coming",
    [
        (situation(1), True),
        (situation(1, A), True),
        (situation(0, A), False),
        (situation(1, limit=0), False),
        (situation(1, templates=()), False),
        (situation(1, FAILED), True),
        (situation(1, may_create=False), True),  # it is only not time yet
        (situation(1, setbacks={M: Setback(0, "a server fell silent", 1001.0)}), True),
        (situation(1, setbacks={M: Setback(1, "refused", 1001.0)}), False),
    ],
)
def test_who_holds_a_request_knows_whether_it_is_worth_it(at, coming):
    assert (M in decide(at).coming) is coming


def test_a_name_of_another_is_gone_around():
    names = {action.name for action in decide(situation(2)).actions if isinstance(action, Create)}
    again = decide(situation(2, taken=names)).actions
    assert names.isdisjoint(action.name for action in again if isinstance(action, Create))


def test_every_model_gets_its_first_object_before_any_gets_a_second():
    models = {f"/sax/test/{name}": spec(f"/sax/test/{name}") for name in "abc"}
    at = situation(0, models=models, planned=models, short=dict.fromkeys(models, 3), limit=4)
    made = [action.model_id[-1] for action in decide(at).actions]
    assert made == ["a", "b", "c", "a"]


# A whole life


@dataclass
class World:
    """Servers, objects and replicas, without any wire: what an assigner would do in short."""

    ordinary: int
    limit: int
    wanted: dict[str, int] = field(default_factory=dict[str, int])
    objects: dict[str, Present] = field(default_factory=dict[str, Present])
    joined: set[str] = field(default_factory=set[str])
    holds: dict[str, str] = field(default_factory=dict[str, str])  # by server: model

    def place(self) -> dict[str, int]:
        """Keep, take away and place replicas; by model, how many have no server."""
        short: dict[str, int] = {}
        self.holds = {s: m for s, m in self.holds.items() if m in self.wanted}
        for model_id, wanted in sorted(self.wanted.items()):
            mine = [server for server, held in self.holds.items() if held == model_id]
            for server in mine[wanted:]:
                del self.holds[server]
            own = [n for n in sorted(self.joined) if self.objects[n].model_id == model_id]
            free = [*own, *(f"ordinary-{number}" for number in range(self.ordinary))]
            free = [server for server in free if server not in self.holds]
            missing = max(0, wanted - len(mine))
            self.holds |= dict.fromkeys(free[:missing], model_id)
            if missing > len(free):
                short[model_id] = missing - len(free)
        return short

    def round(self, **changes: Any) -> Decision:
        """Place, decide, and carry it out; checks what must hold of every decision."""
        short = self.place()
        sets = {
            name: SetServers((f"{name}:1",), idle=name not in self.holds) for name in self.joined
        }
        models = {model_id: spec(model_id, n) for model_id, n in self.wanted.items()}
        decision = decide(
            situation(
                models=models,
                planned=models,
                short=short,
                present=tuple(self.objects.values()),
                sets=sets,
                limit=self.limit,
                **changes,
            )
        )
        for action in decision.actions:
            if isinstance(action, Delete):
                assert action.present.name not in self.holds
                self.end(action.present.name)
            else:
                assert action.name not in self.objects
                self.objects[action.name] = present(action.name, action.model_id)
        assert len(self.objects) <= self.limit
        return decision

    def end(self, name: str) -> None:
        """The object and its server are gone."""
        del self.objects[name]
        self.joined.discard(name)
        self.holds.pop(name, None)

    def disturb(self, choose: random.Random) -> None:
        """Something happens to an object, or to what is wanted."""
        what = choose.choice(["want", "join", "join", "leave", "fail", "delete", "unpublish"])
        model_id = f"/sax/test/{choose.choice('abc')}"
        names = sorted(self.objects)
        name = choose.choice(names) if names else ""
        if what == "want":
            self.wanted[model_id] = choose.randrange(5)
        elif what == "unpublish":
            self.wanted.pop(model_id, None)
        elif not name:
            return
        elif what == "join" and not self.objects[name].failure:
            self.joined.add(name)
        elif what in ("leave", "fail"):
            self.joined.discard(name)
            self.holds.pop(name, None)
            failure = "it failed" if what == "fail" else self.objects[name].failure
            self.objects[name] = replace(self.objects[name], failure=failure)
        elif what == "delete":
            self.end(name)


@pytest.mark.extended
@settings(deadline=None)
@given(st.integers(0, 3), st.integers(0, 8), st.randoms(use_true_random=False))
def test_from_any_state_the_objects_become_exactly_those_that_are_needed(ordinary, limit, choose):
    world = World(ordinary, limit)
    for _ in range(choose.randrange(30)):
        world.disturb(choose)
        if choose.random() < 0.6:
            world.round(may_delete=choose.random() < 0.8, may_create=choose.random() < 0.8)
    for _ in range(30):  # nothing happens any more but that machines come
        decision = world.round()
        world.joined |= {n for n, p in world.objects.items() if not p.failure}
    assert not decision.actions
    assert world.joined == set(world.objects) <= set(world.holds)  # each is used
    placed = {m: sum(held == m for held in world.holds.values()) for m in world.wanted}
    if len(world.objects) < limit:
        assert placed == world.wanted
    assert all(placed[model_id] <= wanted for model_id, wanted in world.wanted.items())


@settings(deadline=None)
@given(st.integers(0, 3), st.integers(0, 8), st.randoms(use_true_random=False))
def test_the_order_in_which_a_cluster_lists_objects_does_not_matter(ordinary, limit, choose):
    world = World(ordinary, limit)
    for _ in range(10):
        world.disturb(choose)
        world.round()
    there = list(world.objects.values())
    at = situation(1, *there)
    choose.shuffle(there)
    assert decide(replace(at, present=tuple(there))) == decide(at)


# What is read of an object


def made(kind: str = "jobset", **status: Any) -> dict[str, Any]:
    body = object_for(SMALL if kind == "jobset" else LARGE, M, "x-0", CELL)
    body["metadata"] |= {"uid": "u", "creationTimestamp": "1970-01-01T00:16:00Z"}
    return {**body, "status": status}


def test_what_was_made_is_known_again():
    read = read_present(JOBSET, made(), CELL)
    assert read is not None
    assert (read.name, read.model_id, read.template, read.devices) == ("x-0", M, "small", 4)
    assert (read.made_at_s, read.state) == (960.0, "waiting")


@each_case("name", cell_labels(CELL))
def test_without_our_labels_it_is_not_ours(name):
    body = made()
    body["metadata"]["labels"][name] = "other"
    assert read_present(JOBSET, body, CELL) is None


@pytest.mark.parametrize("model_id", ["", "nonsense", "/sax/prod/m"])
def test_for_another_cells_model_it_is_not_ours(model_id):
    body = made()
    body["metadata"]["annotations"]["sax.dev/model"] = model_id
    assert read_present(JOBSET, body, CELL) is None


@each_case(
    "body, state",
    [
        (made(replicatedJobsStatus=[{"name": "sax-model-server", "ready": 1}]), "ready"),
        (made(replicatedJobsStatus=[{"name": "sax-model-server", "ready": 0}]), "waiting"),
        (made(conditions=[{"type": "Failed", "status": "True", "message": "m"}]), "failed"),
        (made(conditions=[{"type": "Failed", "status": "False"}]), "waiting"),
        (made(conditions=[{"type": "Completed", "status": "True"}]), "failed"),
        (made(terminalState="Failed"), "failed"),
    ],
)
def test_the_status_of_a_jobset_is_understood(body, state):
    read = read_present(JOBSET, body, CELL)
    assert read is not None
    assert read.state == state


@pytest.mark.parametrize(("ready", "state"), [(0, "waiting"), (1, "ready")])
def test_the_status_of_a_leader_worker_set_is_understood(ready, state):
    read = read_present(LEADER_WORKER_SET, made("lws", readyReplicas=ready), CELL)
    assert read is not None
    assert read.state == state


def test_a_queue_that_holds_it_up_is_told():
    read = read_present(JOBSET, made(conditions=[{"type": "Suspended", "status": "True"}]), CELL)
    assert read is not None
    assert "is queued for machines" in read.describe(1000.0)


# Patience


def test_each_further_setback_waits_longer_and_a_success_forgets_them():
    setbacks = Setbacks(random.Random(0), first_retry_s=5.0)
    waits = [setbacks.note(M, "no", 0.0).next_try_s for _ in range(12)]
    assert all(later > 1.1 * sooner for sooner, later in zip(waits[:6], waits[1:6], strict=False))
    assert max(waits) <= 720
    setbacks.heal(M)
    assert not setbacks.all()


def test_an_action_is_due_when_it_was_right_for_long_enough_without_a_break():
    steadiness = Steadiness(create_s=1.0, delete_s=10.0)
    create = decide(situation(1)).actions
    delete = decide(situation(0, A)).actions
    assert steadiness.due([*create, *delete], 0.0) == []
    assert steadiness.next_due_s(0.0) == 1.0
    assert steadiness.due([*create, *delete], 1.0) == list(create)
    assert steadiness.due([], 9.0) == []
    assert steadiness.due(delete, 11.0) == []
    assert steadiness.due(delete, 21.0) == list(delete)


# What pods say


def pod(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "status": status}


READY = {"conditions": [{"type": "Ready", "status": "True"}]}
UNPLACED = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/12 nodes"}]}
PULLING = {"reason": "ImagePullBackOff", "message": "no such image"}


@each_case(
    "pods, words",
    [
        ([], "0 of 8 pods are ready"),
        ([pod(**READY), pod()], "1 of 8 pods are ready"),
        ([pod(**READY), pod(**UNPLACED)], "1 of 8 pods are ready: 0/12 nodes"),
        (
            [pod(containerStatuses=[{"state": {"waiting": PULLING}}])],
            "0 of 8 pods are ready: ImagePullBackOff: no such image",
        ),
        (
            [pod(containerStatuses=[{"state": {"waiting": {"reason": "ContainerCreating"}}}])],
            "0 of 8 pods are ready",
        ),
    ],
)
def test_pods_say_how_many_are_ready_and_what_keeps_the_others(pods, words):
    assert describe_pods(pods, 8) == words


def test_an_object_knows_how_many_pods_it_is_to_have():
    read = [read_present(JOBSET, made(), CELL), read_present(LEADER_WORKER_SET, made("lws"), CELL)]
    assert [each.pods for each in read if each is not None] == [1, 4]
