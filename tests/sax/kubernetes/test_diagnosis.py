"""What a doctor says of clusters in which one thing is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sax.kubernetes.diagnosis import diagnose
from sax.kubernetes.finding import OK, PROBLEM, WARNING, Finding, worst
from sax.kubernetes.machines import slice_of
from sax.kubernetes.snapshot import LOOKS, Snapshot, Wanted
from tests.sax.kubernetes.snapshots import (
    LEADING,
    REGISTRY,
    applied,
    container,
    controller,
    definition,
    event,
    exited,
    node,
    pod,
    pool,
    waiting,
    webhooks,
    well,
)  # fmt: skip

NOTHING = Wanted()
TUTORIAL = Wanted(there=slice_of("v5e:4x8"), replicas=2)


def troubles(snapshot: Snapshot, wanted: Wanted = NOTHING) -> list[Finding]:
    return [each for each in diagnose(snapshot, wanted) if each.level != OK]


def only(snapshot: Snapshot, wanted: Wanted = NOTHING) -> Finding:
    """The one trouble there is."""
    (found,) = troubles(snapshot, wanted)
    assert found.remedy, found
    return found


def test_a_cluster_in_which_all_is_well_has_no_troubles() -> None:
    assert not troubles(well())
    assert not troubles(well(), TUTORIAL)
    told = {each.about for each in diagnose(well(), NOTHING)}
    assert told >= {"API server", "controllers", "nodes", "quota", "identity", "bucket", "images"}
    assert told >= {"deployments", "jobsets", "address", "pods", "admin server"}


def test_an_empty_namespace_is_told_how_to_begin() -> None:
    empty = well(deployments=[], jobsets=[], pods=[], services=[], serviceaccounts=[])
    found = only(empty, TUTORIAL)
    assert found.level == WARNING
    assert "sax k8s render" in found.remedy


def test_an_old_cluster_is_warned_of() -> None:
    found = only(replace(well(), version="v1.27.3-gke.1"))
    assert (found.level, found.about) == (WARNING, "API server")


# Controllers


def test_an_unknown_kind_is_a_problem_with_the_command_that_installs_it() -> None:
    found = only(well(customresourcedefinitions=[]))
    assert (found.level, found.text) == (PROBLEM, "the cluster does not know JobSet")
    assert "kubernetes-sigs/jobset/releases/latest" in found.remedy


def test_a_kind_in_another_version_is_a_problem() -> None:
    crds = [definition("jobsets.jobset.x-k8s.io", "v1alpha1", "v1beta1")]
    found = only(well(customresourcedefinitions=crds))
    assert "served as v1alpha1, v1beta1" in found.text


def test_a_controller_without_a_ready_pod_is_a_problem() -> None:
    dead = controller("jobset-controller-manager", "jobset-system", ready=0)
    found = only(well(controllers=[dead]))
    assert found.level == PROBLEM
    assert found.remedy == "kubectl -n jobset-system describe deployment jobset-controller-manager"


def test_missing_webhooks_are_a_problem_for_node_pools() -> None:
    assert "no webhooks" in only(well(mutatingwebhookconfigurations=[])).text
    bare = [webhooks("jobset", ca="")]
    assert "no certificate" in only(well(mutatingwebhookconfigurations=bare)).text


@pytest.mark.parametrize(
    ("use", "kind"),
    [("pathways", "PathwaysJob"), ("inference-gateway", "InferencePool"), ("kueue", "ClusterQueue"),
     ("keda", "ScaledObject")],
)  # fmt: skip
def test_what_is_asked_for_is_looked_for(use: str, kind: str) -> None:
    assert f"does not know {kind}" in only(well(), Wanted(uses=(use,))).text


def test_a_leader_worker_set_in_use_needs_its_controller() -> None:
    things = {"kind": "LeaderWorkerSet", "metadata": {"name": "s", "labels": {"app": "sax-http"}}}
    found = troubles(well(leaderworkersets=[things]))
    assert any("lws-controller-manager" in each.text for each in found)


# Nodes


def test_a_missing_slice_is_a_problem_with_the_command_that_makes_it() -> None:
    found = only(well(nodes=pool("sax-0")), TUTORIAL)
    assert "1 usable v5e:4x8 in node pools sax-0, 2 wanted" in found.text
    assert "node-pools create sax-1 " in found.remedy
    assert "--machine-type=ct5lp-hightpu-4t --tpu-topology=4x8 --num-nodes=8" in found.remedy


def test_without_a_topology_the_sets_that_are_there_say_what_they_need() -> None:
    assert "1 usable v5e:4x8 in node pools p0, 2 wanted" in only(well(nodes=pool("p0"))).text


def test_no_node_at_all_is_a_problem_unless_some_are_coming() -> None:
    other = [node("cpu", labels={"cloud.google.com/gke-tpu-topology": ""})]
    assert only(well(nodes=other)).level == PROBLEM
    coming = [event("TriggeredScaleUp", "pod triggered scale-up: 0->8")]
    found = only(well(nodes=other, events=coming))
    assert (found.level, found.about) == (WARNING, "nodes")


@pytest.mark.parametrize(
    ("changes", "words", "remedy"),
    [
        ({"ready": "False"}, "p1-7: not ready", "kubectl describe node p1-7"),
        ({"ready": "Unknown"}, "p1-7: not ready", "kubectl describe node p1-7"),
        ({"spec": {"unschedulable": True}}, "p1-7: cordoned", "kubectl uncordon p1-7"),
        ({"chips": "0"}, "offers no google.com/tpu", "kubectl describe node p1-7"),
        ({"chips": "8"}, "offers 8 google.com/tpu", "kubectl describe node p1-7"),
        (
            {"spec": {"taints": [{"key": "team", "value": "a", "effect": "NoSchedule"}]}},
            "taint team=a:NoSchedule",
            "kubectl taint node p1-7 team:NoSchedule-",
        ),
    ],
)
def test_a_slice_with_one_bad_host_is_no_slice(
    changes: dict[str, Any], words: str, remedy: str
) -> None:
    nodes = [*pool("p0"), *pool("p1", 7), node("p1-7", "p1", **changes)]
    first, second = troubles(well(nodes=nodes))
    assert words in first.text
    assert first.remedy.startswith(remedy)
    assert "1 usable v5e:4x8" in second.text


def test_taints_that_our_pods_tolerate_or_that_repel_nobody_are_no_trouble() -> None:
    taints = [
        {"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"},
        {"key": "cloud.google.com/gke-spot", "value": "true", "effect": "NoSchedule"},
        {"key": "soft", "effect": "PreferNoSchedule"},
    ]
    nodes = [*pool("p0"), *pool("p1", 7), node("p1-7", "p1", spec={"taints": taints})]
    assert not troubles(well(nodes=nodes))


def test_a_pool_that_lacks_hosts_is_named() -> None:
    texts = [each.text for each in troubles(well(nodes=[*pool("p0"), *pool("p1", 5)]))]
    assert "node pool p1 has 5 nodes, and v5e:4x8 has 8 hosts" in texts


def test_every_node_of_a_pool_of_single_hosts_is_a_slice() -> None:
    there = {"cloud.google.com/gke-tpu-topology": "2x2"}
    nodes = [node(f"n{i}", "small", labels=there) for i in range(3)]
    wanted = Wanted(there=slice_of("v5e:2x2"), replicas=3)
    assert not [each for each in troubles(well(nodes=nodes), wanted) if each.about == "nodes"]
    few = Wanted(there=slice_of("v5e:2x2"), replicas=4)
    (found,) = [each for each in troubles(well(nodes=nodes), few) if each.about == "nodes"]
    assert "3 usable v5e:2x2" in found.text
    assert "--tpu-topology" not in found.remedy


# Quota


def quota(hard: dict[str, str], used: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": "q"}, "status": {"hard": hard, "used": used}}


def test_a_quota_below_what_is_wanted_is_a_problem() -> None:
    small = quota({"requests.google.com/tpu": "32"}, {"requests.google.com/tpu": "0"})
    found = only(well(resourcequotas=[small]))
    assert found.level == PROBLEM
    assert "allows 32 google.com/tpu, and 64 chips are wanted" in found.text


def test_a_full_quota_is_a_warning_whatever_its_unit() -> None:
    full = quota({"requests.memory": "1Gi", "pods": "50"}, {"requests.memory": "1024Mi"})
    found = only(well(resourcequotas=[full]))
    assert found.text == "ResourceQuota q is full: requests.memory 1024Mi of 1Gi"


@pytest.mark.parametrize(
    ("reason", "message", "what", "remedy"),
    [
        ("FailedScaleUp", "GCE quota exceeded: TPU_LITE_PODSLICE_V5", "quota of the project",
         "gcloud compute regions describe"),
        ("FailedScaleUp", "GCE out of resources in us-west4-a", "no such machines", "--flex-start"),
        ("FailedScaleUp", "ZONE_RESOURCE_POOL_EXHAUSTED", "no such machines", "--flex-start"),
        ("FailedCreate", 'forbidden: exceeded quota: q, requested: pods=1', "the namespace's quota",
         "kubectl -n default describe pod w"),
        ("FailedScheduling", "0/3 nodes are available: 3 Insufficient google.com/tpu", "0/3 nodes",
         "kubectl -n default describe pod w"),
    ],
)  # fmt: skip
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


# Identity


def test_placeholders_of_the_manifests_are_problems() -> None:
    account = applied()["serviceaccounts"][0]
    account["metadata"]["annotations"] = {
        "iam.gke.io/gcp-service-account": "SAX_GSA@PROJECT_ID.iam.gserviceaccount.com"
    }
    assert "PROJECT_ID was never replaced" in only(well(serviceaccounts=[account])).text
    config = applied()["configmaps"][0]
    config["data"]["GSBUCKET"] = "BUCKET_NAME"
    found = only(well(configmaps=[config]))
    assert "'BUCKET_NAME', and no bucket" in found.text
    assert "patch configmap sax-cell" in found.remedy


def test_what_the_pods_cannot_start_without_is_missed() -> None:
    assert "no ServiceAccount sax-sa" in only(well(serviceaccounts=[])).text
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


# Images


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
        ("403 Forbidden: denied: artifactregistry.repositories.downloadArtifacts",
         "roles/artifactregistry.reader"),
        ("manifest unknown: not found", "gcloud artifacts docker tags list"),
        ("dial tcp: i/o timeout", "describe pod w"),
    ],
)  # fmt: skip
def test_a_pull_that_fails_is_told_with_the_kubelets_words(message: str, remedy: str) -> None:
    status = {"conditions": [], "containerStatuses": waiting("ImagePullBackOff", message)}
    found = only(well(pods=[pod("w", **status)]))
    assert (found.level, found.about) == (PROBLEM, "images")
    assert message in found.text
    assert remedy in found.remedy


# Pods and what makes them


@pytest.mark.parametrize(
    ("code", "meaning"),
    [(75, "lost a host"), (2, "refused its flags"), (137, "killed"), (1, "log says why")],
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


def test_out_of_memory_is_called_so() -> None:
    ended = [container(state=exited(137, reason="OOMKilled"))]
    found = only(well(pods=[pod("w", phase="Failed", conditions=[], containerStatuses=ended)]))
    assert "no more memory than its limit" in found.text


def test_pods_in_the_same_trouble_are_told_together() -> None:
    lonely = {"type": "PodScheduled", "status": "False", "message": "0/16 nodes are available"}
    pods = [pod(f"w{i}", phase="Pending", conditions=[lonely]) for i in range(8)]
    found = only(well(pods=pods))
    assert found.text == "w0, w1, w2 and 5 more: no node: 0/16 nodes are available"


def test_pods_that_are_going_or_are_not_ours_are_left_alone() -> None:
    going = pod("w", phase="Failed", conditions=[])
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    stranger = pod("x", phase="Failed", conditions=[])
    stranger["metadata"]["labels"] = {"app": "other"}
    assert not troubles(well(pods=[going, stranger]))


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
    assert any("all hosts of 0 replicas ready, of 1" in text for text in texts)


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


# The admin server


@pytest.mark.parametrize(
    ("admin", "level", "words"),
    [
        ({"leading": False, "leader": "", "leadership": "stands by"}, PROBLEM, "no admin server"),
        ({"store_trouble": "403 on the bucket"}, PROBLEM, "403 on the bucket"),
        ({"totals": {"wanted_replicas": 2, "ready_replicas": 1}}, WARNING, "1 of 2 wanted"),
    ],
)
def test_the_admin_server_tells_how_its_cell_is(
    admin: dict[str, Any], level: str, words: str
) -> None:
    found = only(well(admin={**LEADING, **admin}))
    assert found.level == level
    assert words in found.text


def test_a_follower_that_names_the_leader_is_enough() -> None:
    assert not troubles(well(admin={**LEADING, "leading": False, "totals": {}}))


def test_an_admin_server_that_is_not_reached_is_a_warning() -> None:
    found = only(well(admin=None, admin_trouble="connection refused"))
    assert found.level == WARNING
    assert "port-forward" in found.remedy


# Whatever is seen


def test_what_may_not_be_seen_is_told_with_the_right_that_is_missing() -> None:
    blind = replace(well(), seen={}, forbidden=frozenset(look.name for look in LOOKS), admin=None)
    found = troubles(blind, TUTORIAL)
    assert {each.level for each in found} == {WARNING}
    assert len(found) == len(LOOKS)
    remedies = " ".join(each.remedy for each in found)
    assert "kubectl auth can-i list nodes --all-namespaces" in remedies
    assert "kubectl auth can-i list jobsets.jobset.x-k8s.io -n default" in remedies


@pytest.mark.parametrize("look", [look.name for look in LOOKS])
def test_each_look_alone_may_be_refused(look: str) -> None:
    before = well()
    seen = {name: things for name, things in before.seen.items() if name != look}
    found = diagnose(replace(before, seen=seen, forbidden=frozenset({look})), TUTORIAL)
    assert worst(found) == WARNING
    assert [each for each in found if each.about == "rights"]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["metadata", "status", "spec", "labels", "name", "conditions", "type", "message",
             "containers", "containerStatuses", "state", "waiting", "replicatedJobs", "taints",
             "app.kubernetes.io/part-of", "hard", "used", "involvedObject", "reason", "template"]
        ),
        inner,
        max_size=5,
    ),
    max_leaves=25,
)  # fmt: skip
_THINGS = st.lists(_JSON.filter(lambda each: isinstance(each, dict)), max_size=3)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from([look.name for look in LOOKS]), _THINGS), st.booleans())
def test_no_object_however_strange_ends_the_look(seen: dict[str, Any], ours: bool) -> None:
    if ours:
        seen = {**seen, "deployments": [*seen.get("deployments", []), *applied()["deployments"]]}
    for finding in diagnose(Snapshot(namespace="d", version="?", seen=seen, admin={}), TUTORIAL):
        assert finding.level in (OK, WARNING, PROBLEM)
        assert finding.text
        assert finding.level == OK or finding.remedy


def test_images_of_the_registry_are_shown() -> None:
    told = next(each for each in diagnose(well(), NOTHING) if each.about == "images")
    assert f"{REGISTRY}/sax-control:0.1.0" in told.text
