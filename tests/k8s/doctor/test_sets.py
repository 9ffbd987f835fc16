"""What makes pods, and what they hang on."""

from __future__ import annotations

from k8s.doctor.finding import PROBLEM
from tests.k8s.doctor.diagnosing import only, troubles
from tests.k8s.doctor.snapshots import applied, well


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
