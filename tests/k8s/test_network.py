"""The network of a cell: what must get through does, and nothing else."""

from __future__ import annotations

from tests.each_case import each_case
from tests.k8s.check import Subject
from tests.k8s.manifests import objects_of
from tests.k8s.network import Caller, may_reach
from tests.k8s.pods import Pod, pods_of

TUTORIAL = objects_of(Subject("overlays/tutorial").render())
PODS = pods_of(TUTORIAL)
STRANGER = Caller({"app": "something-else"})
ELSEWHERE = Caller({"app": "sax-http", "app.kubernetes.io/part-of": "sax"}, {"team": "other"})
PROMETHEUS = Caller({"app": "prometheus"}, {"sax.dev/monitoring": "true"})
CLIENT = Caller({"sax.dev/client": "true"})
GATEWAY, ADMIN, MODEL = "sax-http", "sax-admin-server", "sax-model-server"


def pod(app: str) -> Pod:
    return next(each for each in PODS if each.labels["app"] == app)


def of(app: str) -> Caller:
    return Caller(pod(app).labels)


LET_IN = [
    (STRANGER, GATEWAY, 8888),
    (ELSEWHERE, GATEWAY, 8888),
    (of(GATEWAY), ADMIN, 10000),
    (of(MODEL), ADMIN, 10000),
    (CLIENT, ADMIN, 10000),
    (of(GATEWAY), MODEL, 10001),
    (of(ADMIN), MODEL, 10001),
    (CLIENT, MODEL, 10001),
    (of(MODEL), MODEL, 10101),
    (of(MODEL), MODEL, 8471),
    (of(MODEL), MODEL, 40123),
    (PROMETHEUS, ADMIN, 10002),
    (PROMETHEUS, MODEL, 10003),
]
KEPT_OUT = [
    (STRANGER, ADMIN, 10000),
    (STRANGER, MODEL, 10001),
    (STRANGER, MODEL, 10101),
    (STRANGER, ADMIN, 10002),
    (ELSEWHERE, ADMIN, 10000),
    (ELSEWHERE, MODEL, 10001),
    (of(GATEWAY), MODEL, 10101),
    (of(ADMIN), MODEL, 10101),
    (of(GATEWAY), ADMIN, 10002),
    (PROMETHEUS, ADMIN, 10000),
    (PROMETHEUS, MODEL, 10001),
    (CLIENT, MODEL, 10101),
]


@each_case("caller, app, port", LET_IN)
def test_what_the_cell_needs_gets_through(caller: Caller, app: str, port: int) -> None:
    assert may_reach(TUTORIAL, caller, pod(app).labels, port)


@each_case("caller, app, port", KEPT_OUT)
def test_all_else_is_kept_out(caller: Caller, app: str, port: int) -> None:
    assert not may_reach(TUTORIAL, caller, pod(app).labels, port)


def test_model_servers_on_nodes_reach_the_admin_servers() -> None:
    objects = objects_of(Subject("overlays/tutorial", ("host-network",)).render())
    node = Caller({}, {})
    assert may_reach(objects, node, pod(ADMIN).labels, 10000)
    assert not may_reach(TUTORIAL, node, pod(ADMIN).labels, 10000)


def test_the_pool_and_its_picker_answer_the_proxies_of_a_gateway() -> None:
    objects = objects_of(Subject("overlays/inference-gateway").render())
    pods = pods_of(objects)
    (picker,) = (each for each in pods if each.labels["app"] == "sax-endpoint-picker")
    leader, worker = [each for each in pods if each.owner == "sax-model-server-set-0"][:2]
    assert may_reach(objects, ELSEWHERE, leader.labels, 8888)
    assert may_reach(objects, ELSEWHERE, picker.labels, 9002)
    assert may_reach(objects, Caller(picker.labels), leader.labels, 10003)
    assert not may_reach(objects, ELSEWHERE, worker.labels, 8888)
    assert not may_reach(objects, ELSEWHERE, leader.labels, 10001)
