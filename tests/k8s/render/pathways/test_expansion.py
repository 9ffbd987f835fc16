"""The JobSet of a PathwaysJob: what its controller makes of every field."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k8s.render.fields import pod_of
from k8s.render.pathways.component import PROGRAMS, SIDECAR, PathwaysComponent
from k8s.render.pathways.expansion import jobset_of
from k8s.render.pathways.options import COLOCATED, DEPLOYMENT_MODES, INSTANCE_TYPES
from model_server.pathways.roles.flags import parse
from sax.container import command
from sax.slices import GENERATIONS, slice_of
from tests.each_case import each_case
from tests.k8s.render.pathways import programs as expected
from tests.k8s.render.pathways.programs import HEAD, VARIABLES, job, plain_jobset, programs

_SLICES = [f"{each.chip}:{size}" for each in GENERATIONS.values() for size in each.sizes]
_TAKEN = [each for each in _SLICES if slice_of(each).machine.name in INSTANCE_TYPES]


def _jobs(jobset: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    head, worker = jobset["spec"]["replicatedJobs"]
    assert (head["name"], worker["name"]) == ("pathways-head", "worker")
    return head["template"]["spec"], worker["template"]["spec"]


def _pods(jobset: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    head, worker = _jobs(jobset)
    return head["template"]["spec"], worker["template"]["spec"]


def test_each_program_gets_the_flags_and_variables_of_the_controller() -> None:
    found = programs()
    assert found["pathways-rm"].args == expected.RESOURCE_MANAGER
    assert found["pathways-proxy"].args == expected.PROXY
    assert found["pathways-worker"].args == expected.WORKER
    for name, variables in VARIABLES.items():
        assert found[name].env == variables


def test_the_model_server_is_told_where_the_proxy_is() -> None:
    env = programs()["sax-model-server"].env
    assert env["JAX_PLATFORMS"] == "proxy"
    assert env["JAX_BACKEND_TARGET"] == f"grpc://{expected.HEAD}:29000"
    assert env["XCLOUD_ENVIRONMENT"] == "GCP"


def test_elastic_slices_reach_the_proxy_and_their_restarts_the_job() -> None:
    elastic = {"slices": 3, "elastic_slices": 2}
    assert programs(**elastic)["pathways-proxy"].args[-1] == "--num_elastic_slices=2"
    restarts = {
        given: _jobs(jobset_of(job(**elastic, max_slice_restarts=given)))[1]["backoffLimit"]
        for given in (None, 1, 4)
    }
    assert restarts == {None: 8, 1: 8, 4: 32}
    assert _jobs(jobset_of(job()))[1]["backoffLimit"] == 32


def test_a_version_chooses_googles_images_and_a_component_its_own() -> None:
    own = PathwaysComponent("worker", image="gcr.io/me/worker:3")
    found = programs(version="jax-1", components=(own,))
    google = "us-docker.pkg.dev/cloud-tpu-v2-images/pathways"
    assert found["pathways-rm"].image == f"{google}/server:jax-1"
    assert found["pathways-proxy"].image == f"{google}/proxy_server:jax-1"
    assert found["pathways-worker"].image == "gcr.io/me/worker:3"
    assert programs()["pathways-worker"].image == f"{google}/server:latest"


def test_custom_flags_and_variables_come_after_the_controllers() -> None:
    custom = PathwaysComponent("proxy_server", flags=("--sidecar_name=external",), env={"A": "b=c"})
    proxy = programs(components=(custom,), elastic_slices=1)["pathways-proxy"]
    assert proxy.args[3:] == ("--sidecar_name=external", "--num_elastic_slices=1")
    assert proxy.env == VARIABLES["pathways-proxy"] | {"A": "b=c"}


def test_metrics_are_collected_from_all_programs_or_none() -> None:
    flag = "--enable_metrics_collection=true"
    with_metrics, without = programs(collects_metrics=True), programs()
    for name in VARIABLES:
        assert with_metrics[name].args[-1] == flag
        assert flag not in without[name].args


@pytest.mark.parametrize("slices", [1, 2])
def test_every_program_of_ours_is_told_what_it_is(slices: int) -> None:
    """The controller names the type of the resource manager alone, and gives no command."""
    ours = tuple(PathwaysComponent(kind, image="sax") for kind in PROGRAMS)
    found = programs(components=ours, slices=slices)
    types = {"rm": "resource_manager", "proxy": "proxy_server", "worker": "worker"}
    for name, node_type in types.items():
        container = found[f"pathways-{name}"]
        assert container.image == "sax-model-tpu:0.1.0"
        argv, _ = command("model_server", container.args, container.env)
        assert argv[:2] == ["-m", "model_server.pathways"]
        assert [each for each in argv if "--node_type" in each] == [f"--node_type={node_type}"]


@pytest.mark.parametrize("elastic", [0, 1])
def test_our_programs_take_the_flags_and_variables_that_the_controller_gives(elastic: int) -> None:
    ours = tuple(PathwaysComponent(kind, image="sax") for kind in PROGRAMS)
    found = programs(components=ours, elastic_slices=elastic, trusts_network=True)
    told = {
        name: parse(command("model_server", found[name].args, found[name].env)[0][2:], env)
        for name in VARIABLES
        for env in (found[name].env,)
    }
    manager, proxy, worker = (told[f"pathways-{name}"] for name in ("rm", "proxy", "worker"))
    assert (manager.instance_count, manager.instance_type) == (2, "tpuv5e:4x8")
    assert {proxy.manager, worker.manager} == {f"{HEAD}:29001"}
    assert (manager.port, proxy.port, worker.port) == (29001, 29000, 29005)
    assert proxy.elastic_islands == elastic
    assert worker.island == 1
    assert {each.host for each in told.values()} == {"0.0.0.0"}


def test_only_a_network_that_is_trusted_is_served_without_certificates() -> None:
    ours = tuple(PathwaysComponent(kind, image="sax") for kind in PROGRAMS)
    plain, trust = "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS", "SAX_PATHWAYS_TRUST_NETWORK"
    trusting, careful = programs(components=ours, trusts_network=True), programs(components=ours)
    assert trusting["sax-model-server"].env[plain] == "true"
    assert all(trusting[name].env[trust] == "1" for name in VARIABLES)
    assert plain not in careful["sax-model-server"].env
    assert not any(trust in careful[name].env for name in VARIABLES)
    mixed = programs(components=(ours[0], PathwaysComponent("worker")), trusts_network=True)
    assert trust not in mixed["pathways-worker"].env


def test_a_sidecar_runs_beside_each_worker() -> None:
    sidecar = PathwaysComponent(SIDECAR, image="gcr.io/me/sidecar:1")
    _, pod = _pods(jobset_of(job(components=(sidecar,))))
    (beside,) = pod["initContainers"]
    assert (beside["image"], beside["restartPolicy"]) == ("gcr.io/me/sidecar:1", "Always")
    assert beside["env"] == [{"name": "GRPC_SERVER_ADDRESS", "value": "'0.0.0.0:50051'"}]
    assert "initContainers" not in _pods(jobset_of(job()))[1]


def test_a_default_head_has_a_node_of_its_own_and_no_place_on_tpu_nodes() -> None:
    jobset = jobset_of(job())
    head, workers = _pods(jobset)
    assert "nodeSelector" not in head
    assert "tolerations" not in head
    annotations = jobset["spec"]["replicatedJobs"][0]["template"]["metadata"]["annotations"]
    assert list(annotations.values()) == ["kubernetes.io/hostname"]
    assert "affinity" not in workers


def test_a_colocated_head_may_go_where_the_workers_are() -> None:
    jobset = jobset_of(job(deployment_mode=COLOCATED, node_selector={"pool": "a"}))
    head, workers = _pods(jobset)
    assert head["nodeSelector"] == workers["nodeSelector"]
    assert head["nodeSelector"]["pool"] == "a"
    assert [each["key"] for each in head["tolerations"]] == ["google.com/tpu"]
    assert "metadata" not in jobset["spec"]["replicatedJobs"][0]["template"]
    assert workers["affinity"].keys() == {"podAffinity", "podAntiAffinity"}


@pytest.mark.extended
@each_case("topology", _TAKEN)
def test_a_colocated_head_fits_beside_a_worker(topology: str) -> None:
    """The limits of the resource manager and the proxy are requests, too."""
    head, _ = _pods(jobset_of(job(topology, deployment_mode=COLOCATED)))
    machine = slice_of(topology).machine
    cpus = [int(each["resources"]["limits"]["cpu"]) for each in head["initContainers"]]
    assert sum(cpus) + 8 < machine.vcpus
    assert machine.allocatable > (32 + 100) * 10**9 + 32 * 2**30


@pytest.mark.extended
@each_case("topology", _TAKEN)
def test_the_slices_are_those_that_the_cluster_knows(topology: str) -> None:
    there = slice_of(topology)
    _, worker = _jobs(jobset_of(job(topology)))
    pod = worker["template"]["spec"]
    assert (worker["parallelism"], worker["completions"]) == (there.hosts, there.hosts)
    assert pod["nodeSelector"] == there.node_selector
    limits = pod["containers"][0]["resources"]["limits"]
    assert limits == {"google.com/tpu": str(there.chips_per_host)}


def test_a_job_without_a_pod_is_headless() -> None:
    headless = job()
    del headless["spec"]["controller"]["template"]
    jobset = jobset_of(headless)
    head, _ = _pods(jobset)
    assert [each["name"] for each in head["containers"]] == ["pathways-rm", "pathways-proxy"]
    assert not any("restartPolicy" in each for each in head["containers"])
    assert "initContainers" not in head
    assert "successPolicy" not in jobset["spec"]


def test_only_the_main_container_is_connected() -> None:
    other = job()
    other["spec"]["controller"]["mainContainerName"] = "elsewhere"
    head, _ = _pods(jobset_of(other))
    assert [each["name"] for each in head["containers"][0]["env"]] == ["POD_IP"]


def test_annotations_of_the_job_reach_the_jobset_and_the_head() -> None:
    annotated = job()
    annotated["metadata"] |= {"annotations": {"team": "blue"}, "uid": "1"}
    jobset = jobset_of(annotated)
    template = jobset["spec"]["replicatedJobs"][0]["template"]
    assert jobset["metadata"].keys() == {"name", "labels", "annotations"}
    assert template["metadata"]["annotations"]["team"] == "blue"
    assert template["spec"]["template"]["metadata"]["annotations"]["team"] == "blue"


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(_TAKEN),
    st.integers(1, 9),
    st.sampled_from(DEPLOYMENT_MODES),
    st.integers(0, 2**31 - 1),
    st.none() | st.integers(0, 600),
)
def test_an_expansion_changes_nothing_and_keeps_every_number(
    topology: str, slices: int, mode: str, restarts: int, grace: int | None
) -> None:
    given_job = job(
        topology,
        slices=slices,
        deployment_mode=mode,
        max_restarts=restarts,
        worker_grace_seconds=grace,
        worker_priority_class="low",
    )
    before = copy.deepcopy(given_job)
    jobset = jobset_of(given_job)
    assert given_job == before
    assert jobset["spec"]["replicatedJobs"][1]["replicas"] == slices
    assert jobset["spec"]["failurePolicy"] == {"maxRestarts": restarts}
    pod = _pods(jobset)[1]
    assert pod.get("terminationGracePeriodSeconds") == grace
    assert pod["priorityClassName"] == "low"


def test_the_jobset_for_clusters_without_the_controller_runs_workers_that_can_open_chips() -> None:
    ours = tuple(PathwaysComponent(kind, image="sax") for kind in PROGRAMS)
    for topology, added in (("v5e:4x8", None), ("v6e:4x4", ["SYS_RESOURCE"])):
        made = plain_jobset(topology, components=ours)
        head, workers = _pods(made)
        context = workers["containers"][0]["securityContext"]
        assert context["runAsUser"] == 0
        assert context["capabilities"].get("add") == added
        assert workers["serviceAccountName"] == head["serviceAccountName"] == "sax-model-server"
    googles = _pods(plain_jobset())[1]["containers"][0]
    assert "securityContext" not in googles
    assert pod_of(made)["containers"][0]["name"] == "sax-model-server"
