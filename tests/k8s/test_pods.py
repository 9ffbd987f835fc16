"""The pods of our renderings, and whether each knows its place in its replica by them alone."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest

from model_server.multihost.membership import Membership, membership
from tests.each_case import each_case
from tests.k8s.check import Subject
from tests.k8s.flags import role_of
from tests.k8s.manifests import objects_of
from tests.k8s.pods import Pod, pods_of

# Of each: the replicas, and the hosts of each of them.
SHAPES = {
    Subject("base"): (1, 1),
    Subject("overlays/tutorial"): (2, 8),
    Subject("overlays/tutorial", ("host-network",)): (2, 8),
    Subject("overlays/tutorial", ("tokens",)): (2, 8),
    Subject("overlays/one-jobset-per-replica"): (2, 8),
    Subject("overlays/leaderworkerset"): (2, 8),
    Subject("overlays/leaderworkerset", ("host-network",)): (2, 8),
    Subject("overlays/inference-gateway"): (2, 8),
    Subject("overlays/one-jobset-per-replica", ("tokens", "host-network", "memlock")): (2, 8),
    Subject("overlays/flex-start"): (2, 8),
    Subject("overlays/autoscaling"): (1, 8),
    Subject("overlays/autoscaling-keda"): (1, 8),
    Subject("overlays/tpu-v5e"): (1, 1),
    Subject("overlays/tpu-v6e"): (1, 1),
    Subject("overlays/gpu"): (1, 1),
    Subject("overlays/cpu"): (1, 1),
    Subject("overlays/pathways"): (1, 1),
    Subject("overlays/pathways/colocated"): (1, 1),
    Subject("overlays/pathways/jobset"): (1, 1),
    Subject("overlays/pathways/our-components"): (1, 1),
}


def model_servers(subject: Subject) -> list[list[Pod]]:
    """The pods with a model server, replica by replica."""
    pods = [
        pod
        for pod in pods_of(objects_of(subject.render()))
        if any(role_of(container)[0] == "model_server" for container in pod.containers)
    ]
    return [list(group) for _, group in itertools.groupby(pods, key=lambda pod: pod.owner)]


def environment(pod: Pod) -> dict[str, str]:
    return next(each.env for each in pod.containers if role_of(each)[0] == "model_server")


def place(pod: Pod, more: Mapping[str, str] | None = None) -> Membership:
    return membership("", None, {**environment(pod), **(more or {})}, pod.hostname)


@each_case("subject, shape", SHAPES.items())
def test_hosts_of_a_replica_agree_on_their_places(subject: Subject, shape: tuple[int, int]) -> None:
    replicas = model_servers(subject)
    assert (len(replicas), len(replicas[0])) == shape
    for pods in replicas:
        check_places(pods, [place(pod) for pod in pods])


@pytest.mark.parametrize(
    "subject", [Subject("overlays/tutorial"), Subject("overlays/flex-start")], ids=str
)
def test_they_agree_as_well_where_gke_says_the_same(subject: Subject) -> None:
    for pods in model_servers(subject):
        names = ",".join(f"{pod.hostname}.{pod.subdomain}" for pod in pods)
        told = [{"TPU_WORKER_HOSTNAMES": names, "TPU_WORKER_ID": str(pod.index)} for pod in pods]
        places = [place(pod, more) for pod, more in zip(pods, told, strict=True)]
        check_places(pods, places)


def check_places(pods: list[Pod], places: list[Membership]) -> None:
    """One count, ordinals from 0 on, and one primary: pod 0, by a name that it answers to."""
    assert {each.count for each in places} == {len(pods)}
    assert [each.ordinal for each in places] == list(range(len(pods)))
    (primary,) = {each.primary for each in places}
    if len(pods) > 1:
        assert primary in names_in_dns(pods[0])


def names_in_dns(pod: Pod) -> set[str]:
    """What finds a pod in its namespace: its own host name, not the node's, and the subdomain."""
    own = pod.name.removesuffix("-xxxxx")
    return {f"{own}.{pod.subdomain}", f"{own}.{pod.subdomain}.default"}


def test_replicas_have_primaries_of_their_own() -> None:
    for subject, (count, _) in SHAPES.items():
        primaries = {place(pod).primary for pods in model_servers(subject) for pod in pods}
        assert len(primaries) == count, subject


def test_on_the_hosts_network_the_name_is_that_of_the_node() -> None:
    pods = model_servers(Subject("overlays/tutorial", ("host-network",)))[0]
    assert all(pod.hostname.startswith("node-") for pod in pods)


def test_the_tutorials_pods_have_the_tutorials_names_and_arguments() -> None:
    pods = [pod for pods in model_servers(Subject("overlays/tutorial")) for pod in pods]
    assert pods[0].name.startswith("sax-model-server-set-sax-model-server-0-0-")
    assert pods[-1].name.startswith("sax-model-server-set-sax-model-server-1-7-")
    for pod in pods:
        (container,) = pod.containers
        assert container.name == "sax-model-server"
        assert container.command == ()
        tutorial = ("--port=10001", "--platform_chip=tpuv5e", "--platform_topology=4x8")
        assert container.args[:3] == tutorial
        assert container.env["MEGASCALE_NUM_SLICES"] == ""
        assert container.env["GSBUCKET"] == "BUCKET_NAME"


def test_every_pod_gets_the_address_that_it_is_given() -> None:
    objects = objects_of(Subject("overlays/tutorial").render())
    pods = pods_of(objects, address=lambda pod: f"ip-of-{pod.name}")
    assert all(environment(pod)["POD_IP"] == f"ip-of-{pod.name}" for pod in pods if pod.subdomain)
    assert len({pod.name for pod in pods}) == len(pods) == 20


def test_the_hosts_of_the_slice_check_know_their_places() -> None:
    pods = pods_of(objects_of(Subject("examples/slice-check").render()))
    assert [pod.hostname for pod in pods] == [f"slice-check-{index}" for index in range(8)]
    places = [membership("", None, pod.containers[0].env, pod.hostname) for pod in pods]
    check_places(pods, places)


@each_case("folder", ["", "/jobset", "/colocated", "/our-components"])
def test_the_head_of_pathways_finds_itself_by_what_the_jobset_says(folder: str) -> None:
    pods = pods_of(objects_of(Subject(f"overlays/pathways{folder}").render()))
    head = next(pod for pod in pods if pod.owner == "sax-pathways-pathways-head-0")
    assert environment(head)["JAX_BACKEND_TARGET"] == (
        "grpc://sax-pathways-pathways-head-0-0.sax-pathways:29000"
    )
    manager = next(each for each in head.containers if each.name == "pathways-rm")
    assert manager.env["JOBSET_NAME"] == "sax-pathways"
    workers = [pod for pod in pods if pod.owner.startswith("sax-pathways-worker-")]
    assert [each.containers[0].env["MEGASCALE_SLICE_ID"] for each in workers] == [
        *"0" * 8,
        *"1" * 8,
    ]


def test_gateways_beside_primaries_prefer_their_own_model_server() -> None:
    for pods in model_servers(Subject("overlays/inference-gateway")):
        gateways = [each for each in pods[0].containers if role_of(each)[0] == "http_gateway"]
        assert f"--prefer={environment(pods[0])['POD_IP']}:10001" in gateways[0].args
        assert all(len(pod.containers) == 1 for pod in pods[1:])
