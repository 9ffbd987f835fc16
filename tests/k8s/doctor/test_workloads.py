"""What makes pods and what they hang on, images without a home, pods in trouble."""

from __future__ import annotations

from dataclasses import replace

import pytest

from k8s.doctor.diagnosis import diagnose
from sax.finding import PROBLEM, WARNING
from tests.each_case import each_case
from tests.k8s.doctor.diagnosing import NOTHING, only, troubles
from tests.k8s.doctor.snapshots import REGISTRY, applied, container, exited, pod, waiting, well


def test_a_jobset_that_failed_says_that_it_will_not_come_back() -> None:
    things = applied()["jobsets"]
    failed = {"type": "Failed", "status": "True", "message": "jobset failed: max restarts"}
    things[0]["status"] = {"conditions": [failed]}
    found = only(well(jobsets=things))
    assert found.level == PROBLEM
    assert "max restarts" in found.text
    assert "delete jobset sax-model-server-set-0" in found.remedy


def test_a_jobset_that_waits_restarts_or_lacks_hosts_is_a_warning() -> None:
    things = applied()["jobsets"]
    things[0]["spec"]["suspend"] = True
    things[1]["status"] = {"restarts": 3, "replicatedJobsStatus": [{"ready": 0}]}
    texts = [each.text for each in troubles(well(jobsets=things))]
    assert any("suspended" in text for text in texts)
    assert "sax-model-server-set-1 was restarted 3 times" in texts
    assert any("all hosts ready in 0 of 1 replicas" in text for text in texts)


def test_a_deployment_says_why_it_has_no_pods() -> None:
    things = applied()["deployments"]
    why = {"type": "ReplicaFailure", "status": "True", "message": "serviceaccount not found"}
    things[0]["status"] = {"readyReplicas": 0, "conditions": [why]}
    found = only(well(deployments=things))
    assert found.level == PROBLEM
    assert "0 of 2 pods of sax-admin-server are ready: serviceaccount not found" in found.text


def test_a_service_without_an_address_and_a_volume_that_waits_are_problems() -> None:
    things = applied()["services"]
    for each in things:
        each.pop("status", None)
    found = only(well(services=things))
    assert (found.level, found.about) == (PROBLEM, "address")
    assert "port-forward service/sax-http-lb 8888" in found.remedy
    labels = {"app.kubernetes.io/part-of": "sax"}
    claim = {"metadata": {"name": "c", "labels": labels}, "status": {"phase": "Pending"}}
    assert "PersistentVolumeClaim c is Pending" in only(well(persistentvolumeclaims=[claim])).text


def test_what_is_scaled_to_nothing_lacks_nothing() -> None:
    things = applied()["deployments"]
    things[0]["spec"]["replicas"], things[0]["status"] = 0, {}
    assert not troubles(well(deployments=things))


def test_an_image_without_a_registry_is_a_problem_on_gke_alone() -> None:
    things = applied()["deployments"]
    for each in things:
        each["spec"]["template"]["spec"]["containers"][0]["image"] = "sax-control:0.1.0"
    found = only(well(deployments=things))
    assert "names no registry" in found.text
    local = replace(well(deployments=things, nodes=[]), version="v1.33.1")
    assert not [each for each in troubles(local) if each.about == "images"]


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        (
            "403 Forbidden: denied: artifactregistry.repositories.downloadArtifacts",
            "roles/artifactregistry.reader",
        ),
        ("manifest unknown: not found", "gcloud artifacts docker tags list"),
        ("dial tcp: i/o timeout", "describe pod w"),
    ],
)
def test_a_pull_that_fails_is_told_with_the_kubelets_words(message: str, remedy: str) -> None:
    status = {"conditions": [], "containerStatuses": waiting("ImagePullBackOff", message)}
    found = only(well(pods=[pod("w", **status)]))
    assert (found.level, found.about) == (PROBLEM, "images")
    assert message in found.text
    assert remedy in found.remedy


def test_images_of_the_registry_are_shown() -> None:
    told = next(each for each in diagnose(well(), NOTHING) if each.about == "images")
    assert f"{REGISTRY}/sax-control:0.1.0" in told.text


@each_case(
    "code, meaning",
    [(75, "lost a host"), (2, "rejected its flags"), (137, "killed"), (1, "log says why")],
)
def test_exit_codes_are_told_in_words(code: int, meaning: str) -> None:
    loop = waiting("CrashLoopBackOff", restartCount=4, lastState=exited(code))
    found = only(well(pods=[pod("w", conditions=[], containerStatuses=loop)]))
    assert found.level == PROBLEM
    assert meaning in found.text
    assert f"(exit code {code})" in found.text
    assert found.remedy == "kubectl -n default logs w --previous"


def test_a_host_that_was_lost_and_is_back_is_a_warning() -> None:
    back = [container(state={"running": {}}, restartCount=1, lastState=exited(75))]
    found = only(well(pods=[pod("w", containerStatuses=back)]))
    assert found.level == WARNING
    assert "was restarted: its replica lost a host" in found.text


def test_a_pod_that_ended_to_be_started_again_is_a_warning() -> None:
    for code, level in ((75, WARNING), (143, WARNING), (1, PROBLEM)):
        ended = [container(state=exited(code))]
        found = only(well(pods=[pod("w", phase="Failed", conditions=[], containerStatuses=ended)]))
        assert found.level == level


def test_out_of_memory_is_called_so() -> None:
    ended = [container(state=exited(137, reason="OOMKilled"))]
    found = only(well(pods=[pod("w", phase="Failed", conditions=[], containerStatuses=ended)]))
    assert "needed more memory than its limit" in found.text


def test_pods_in_the_same_trouble_are_told_together() -> None:
    lonely = {"type": "PodScheduled", "status": "False", "message": "0/16 nodes are available"}
    pods = [pod(f"w{i}", phase="Pending", conditions=[lonely]) for i in range(8)]
    found = only(well(pods=pods))
    assert found.text == "w0, w1, w2 and 5 more: no node: 0/16 nodes are available"


def test_a_pod_that_a_queue_holds_back_is_a_warning() -> None:
    held = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    found = only(well(pods=[pod("w", phase="Pending", conditions=[held])]))
    assert (found.level, "held back by a queue" in found.text) == (WARNING, True)


def test_pods_that_are_going_or_are_not_ours_are_left_alone() -> None:
    going = pod("w", phase="Failed", conditions=[])
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    stranger = pod("x", phase="Failed", conditions=[])
    stranger["metadata"]["labels"] = {"app": "other"}
    assert not troubles(well(pods=[going, stranger]))
