"""Whom the bucket sees, and room that a namespace or a project lacks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from k8s.render.fields import name_of
from sax.finding import PROBLEM, WARNING
from tests.each_case import each_case
from tests.k8s.doctor.diagnosing import only, troubles
from tests.k8s.doctor.snapshots import applied, event, node, pod, pool, well


def test_placeholders_of_the_manifests_are_problems() -> None:
    accounts = applied()["serviceaccounts"]
    accounts[0]["metadata"]["annotations"] = {
        "iam.gke.io/gcp-service-account": "SAX_GSA@PROJECT_ID.iam.gserviceaccount.com"
    }
    assert "PROJECT_ID was never replaced" in only(well(serviceaccounts=accounts)).text
    config = applied()["configmaps"][0]
    config["data"]["GSBUCKET"] = "BUCKET_NAME"
    found = only(well(configmaps=[config]))
    assert "'BUCKET_NAME', which is not a bucket" in found.text
    assert "patch configmap sax-cell" in found.remedy


def test_what_the_pods_cannot_start_without_is_missed() -> None:
    accounts = [each for each in applied()["serviceaccounts"] if name_of(each) != "sax-gateway"]
    assert "no ServiceAccount sax-gateway" in only(well(serviceaccounts=accounts)).text
    assert "no ConfigMap sax-cell" in only(well(configmaps=[])).text


def test_pools_without_workload_identity_are_named_unless_the_bucket_is_elsewhere() -> None:
    bare = {"iam.gke.io/gke-metadata-server-enabled": ""}
    nodes = [*pool("p0"), *(node(f"p1-{i}", "p1", labels=bare) for i in range(8))]
    found = only(well(nodes=nodes))
    assert (found.level, found.about) == (WARNING, "identity")
    assert "node-pools update p1 " in found.remedy
    all_bare = [node(f"{p}-{i}", p, labels=bare) for p in ("p0", "p1") for i in range(8)]
    assert only(well(nodes=all_bare)).level == PROBLEM
    config = applied()["configmaps"][0]
    config["data"]["GSBUCKET"] = "s3://elsewhere"
    assert not troubles(well(nodes=nodes, configmaps=[config]))


def quota(hard: dict[str, str], used: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": "q"}, "status": {"hard": hard, "used": used}}


def test_a_quota_below_what_is_wanted_is_a_problem() -> None:
    small = quota({"requests.google.com/tpu": "32"}, {"requests.google.com/tpu": "0"})
    found = only(well(resourcequotas=[small]))
    assert found.level == PROBLEM
    assert "allows 32 google.com/tpu, but 64 chips are wanted" in found.text


def test_a_full_quota_is_a_warning_whatever_its_unit() -> None:
    full = quota({"requests.memory": "1Gi", "pods": "50"}, {"requests.memory": "1024Mi"})
    found = only(well(resourcequotas=[full]))
    assert found.text == "ResourceQuota q is full: requests.memory 1024Mi of 1Gi"


@each_case(
    "reason, message, what, remedy",
    [
        (
            "FailedScaleUp",
            "GCE quota exceeded: TPU_LITE_PODSLICE_V5",
            "quota of the project",
            "gcloud compute regions describe",
        ),
        ("FailedScaleUp", "GCE out of resources in us-west4-a", "no such machines", "--flex-start"),
        ("FailedScaleUp", "ZONE_RESOURCE_POOL_EXHAUSTED", "no such machines", "--flex-start"),
        (
            "FailedCreate",
            "forbidden: exceeded quota: q, requested: pods=1",
            "the namespace's quota",
            "kubectl -n default describe pod w",
        ),
        (
            "FailedScheduling",
            "0/3 nodes are available: 3 Insufficient google.com/tpu",
            "0/3 nodes",
            "kubectl -n default describe pod w",
        ),
    ],
)
def test_events_say_why_there_is_no_room(reason: str, message: str, what: str, remedy: str) -> None:
    wait = {"phase": "Pending", "conditions": [], "containerStatuses": []}
    late = {**pod("w", **wait), "spec": {}}
    found = troubles(well(events=[event(reason, message, count=3)], pods=[late]))
    told = next(each for each in found if reason in each.text)
    assert told.level == PROBLEM
    assert what in told.text
    assert "(3 times)" in told.text
    assert told.remedy.startswith(remedy) or remedy in told.remedy


def test_events_of_pods_that_run_or_are_gone_are_past() -> None:
    past = [
        event("FailedScheduling", "0/3 nodes", "sax-http-1"),
        event("FailedScheduling", "0/3 nodes", "long-gone"),
    ]
    assert not troubles(well(events=past))


@each_case("kind", ["Job", "JobSet", "StatefulSet", "LeaderWorkerSet", "PathwaysJob"])
def test_events_of_sets_and_jobs_that_are_gone_are_past(kind: str) -> None:
    full = event("FailedCreate", "forbidden: exceeded quota: q", "gone", kind=kind)
    assert not troubles(well(events=[full]))


def test_events_of_the_job_before_this_one_are_past() -> None:
    full = event("FailedCreate", "forbidden: exceeded quota: q", "job-0", kind="Job")
    full["involvedObject"]["uid"] = "first"
    job = {"metadata": {"name": "job-0", "uid": "second"}}
    assert not troubles(well(events=[full], jobs=[job]))
    job["metadata"]["uid"] = "first"
    assert "job-0: FailedCreate" in only(well(events=[full], jobs=[job])).text
    del job["metadata"]["uid"]
    assert "job-0: FailedCreate" in only(well(events=[full], jobs=[job])).text


def test_events_are_kept_where_it_is_unknown_what_is_there() -> None:
    full = event("FailedCreate", "forbidden: exceeded quota: q", "gone", kind="Job")
    at = well(events=[full])
    seen = {name: things for name, things in at.seen.items() if name != "jobs"}
    found = [each for each in troubles(replace(at, seen=seen)) if each.about == "quota"]
    assert len(found) == 1
