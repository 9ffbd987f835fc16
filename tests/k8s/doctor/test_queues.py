"""Sets that Kueue queues: admitted, waiting, stopped, given up."""

from __future__ import annotations

from typing import Any

import pytest

from k8s.doctor.diagnosis import diagnose
from k8s.doctor.snapshot import Snapshot
from sax.finding import OK, PROBLEM, WARNING
from tests.k8s.doctor.diagnosing import NOTHING, only, troubles
from tests.k8s.doctor.snapshots import applied, well, with_kueue

REVOKED = "AdmissionCheck sax-flex-start: the capacity was revoked"
DEACTIVATED = {
    "type": "Evicted",
    "status": "True",
    "reason": "DeactivatedDueToAdmissionCheck",
    "message": REVOKED,
}
BY_HAND = {**DEACTIVATED, "reason": "Deactivated", "message": "The workload is deactivated"}


def workload(active: bool = True, **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "jobset-0", "labels": {"kueue.x-k8s.io/job-uid": "u-0"}},
        "spec": {"active": active, "queueName": "sax"},
        "status": status,
    }


def cluster(
    *workloads: dict[str, Any], labels: dict[str, str] | None = None, suspended: bool = True
) -> Snapshot:
    """The first of two JobSets is queued."""
    things = applied()["jobsets"]
    things[0]["metadata"]["uid"] = "u-0"
    things[0]["metadata"]["labels"] |= {"kueue.x-k8s.io/queue-name": "sax", **(labels or {})}
    things[0]["spec"]["suspend"] = suspended
    return well(jobsets=things, workloads=list(workloads), **with_kueue())


def test_a_set_whose_capacity_was_taken_back_is_a_problem_with_what_works() -> None:
    found = only(cluster(workload(active=False, conditions=[DEACTIVATED])))
    assert (found.level, found.about) == (PROBLEM, "queue")
    assert REVOKED in found.text
    assert "sax-model-server-set-0 stays suspended for ever" in found.text
    assert found.remedy.startswith("kubectl -n default delete jobset sax-model-server-set-0 ")
    assert "apply its manifest again" in found.remedy


def test_the_admin_servers_own_sets_are_made_anew_by_it() -> None:
    ours = {"app.kubernetes.io/managed-by": "sax-admin-server"}
    ended = workload(active=False, conditions=[DEACTIVATED])
    found = only(cluster(ended, labels=ours))
    assert found.level == WARNING
    assert "the admin server makes another object" in found.text
    assert "--as=system:serviceaccount:default:sax-admin" in found.remedy


def test_a_set_that_a_person_stopped_is_told_apart() -> None:
    found = only(cluster(workload(active=False, conditions=[BY_HAND])))
    assert found.level == WARNING
    assert "somebody deactivated the workload" in found.text
    assert "patch workload jobset-0 " in found.remedy


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({"admissionChecks": [{"state": "Pending", "message": "ETA unknown"}]}, "ETA unknown"),
        (
            {"conditions": [{"type": "QuotaReserved", "status": "False", "message": "no quota"}]},
            "no quota",
        ),
        ({}, "waits in the queue sax"),
    ],
)
def test_a_set_that_waits_says_for_what(status: dict[str, Any], words: str) -> None:
    found = only(cluster(workload(**status)))
    assert found.level == WARNING
    assert words in found.text
    assert found.remedy == "kubectl -n default describe workload jobset-0"


def test_a_set_that_is_admitted_is_well() -> None:
    admitted = workload(conditions=[{"type": "Admitted", "status": "True"}])
    at = cluster(admitted, suspended=False)
    assert not troubles(at)
    told = [each for each in diagnose(at, NOTHING) if each.about == "queue"]
    assert [(each.level, each.text) for each in told] == [
        (OK, "sax-model-server-set-0 was admitted by Kueue")
    ]


def test_a_set_that_was_evicted_and_holds_its_quota_is_told_of() -> None:
    names = ("Admitted", "QuotaReserved", "Evicted")
    found = only(cluster(workload(conditions=[{"type": name, "status": "True"} for name in names])))
    assert found.level == WARNING
    assert "kueue#14811" in found.text
    assert found.remedy.startswith("kubectl -n default delete jobset sax-model-server-set-0 ")


def test_a_queue_that_nobody_serves_is_told() -> None:
    found = only(cluster())
    assert "Kueue made no workload of it" in found.text


def test_a_set_that_somebody_suspended_without_a_queue_is_told_so() -> None:
    things = applied()["jobsets"]
    things[0]["spec"]["suspend"] = True
    found = only(well(jobsets=things))
    assert "somebody suspended it" in found.text
    assert '{"spec":{"suspend":false}}' in found.remedy


def test_one_workload_that_may_run_is_enough() -> None:
    ended = workload(conditions=[{"type": "Finished", "status": "True", "message": "replaced"}])
    admitted = workload(conditions=[{"type": "Admitted", "status": "True"}])
    assert not troubles(cluster(ended, admitted, suspended=False))
