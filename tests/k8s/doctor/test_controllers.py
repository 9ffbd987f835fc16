"""Kinds that a cluster lacks, and controllers that do nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from k8s.doctor.controllers import FAULTS, outdated, told
from k8s.doctor.snapshot import ClusterNeeds
from k8s.render.gcloud import LEAST
from sax.finding import PROBLEM, WARNING
from tests.demo_model import ROOT
from tests.each_case import each_case
from tests.k8s.doctor.diagnosing import only, troubles
from tests.k8s.doctor.snapshots import (
    SERVED,
    applied,
    controller,
    definition,
    webhooks,
    well,
    with_kueue,
)


def test_an_unknown_kind_is_a_problem_with_the_command_that_installs_it() -> None:
    found = only(well(customresourcedefinitions=[]))
    assert (found.level, found.text) == (PROBLEM, "JobSet is not installed")
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


@each_case(
    "use, kind",
    [
        ("pathways", "PathwaysJob"),
        ("inference-gateway", "InferencePool"),
        ("kueue", "ClusterQueue of Kueue"),
        ("keda", "ScaledObject of KEDA"),
    ],
)
def test_what_is_asked_for_is_looked_for(use: str, kind: str) -> None:
    assert only(well(), ClusterNeeds(uses=(use,))).text == f"{kind} is not installed"


def test_a_leader_worker_set_in_use_needs_its_controller() -> None:
    things = {"kind": "LeaderWorkerSet", "metadata": {"name": "s", "labels": {"app": "sax-http"}}}
    found = troubles(well(leaderworkersets=[things]))
    assert any("lws-controller-manager" in each.text for each in found)


@each_case(
    "look, kind",
    [
        ("pathwaysjobs", "PathwaysJob"),
        ("scaledobjects", "ScaledObject of KEDA"),
        ("localqueues", "ClusterQueue of Kueue"),
        ("inferencepools", "InferencePool"),
    ],
)
def test_what_objects_need_is_looked_for_without_being_asked(look: str, kind: str) -> None:
    thing = {"metadata": {"name": "x", "labels": {"app.kubernetes.io/part-of": "sax"}}}
    texts = [each.text for each in troubles(well(**{look: [thing]}))]
    assert f"{kind} is not installed" in texts


@pytest.mark.parametrize(
    ("look", "definition_of", "version", "deployment"),
    [
        (
            "pathwaysjobs",
            "pathwaysjobs.pathways-job.pathways.domain",
            "v1",
            "pathways-job-controller-manager",
        ),
        ("scaledobjects", "scaledobjects.keda.sh", "v1alpha1", "keda-operator"),
    ],
)
def test_controllers_of_kinds_in_use_are_looked_for(
    look: str, definition_of: str, version: str, deployment: str
) -> None:
    thing = {"metadata": {"name": "x"}}
    crds = [definition(*each) for each in SERVED.items()] + [definition(definition_of, version)]
    found = only(well(**{look: [thing]}, customresourcedefinitions=crds))
    assert f"there is no Deployment {deployment}" in found.text
    dead = [
        controller("jobset-controller-manager", "jobset-system"),
        controller(deployment, "there", ready=0),
    ]
    found = only(well(**{look: [thing]}, customresourcedefinitions=crds, controllers=dead))
    assert found.level == PROBLEM
    assert f"{deployment} has no ready pod" in found.text


def test_a_set_with_the_name_of_a_queue_needs_kueue() -> None:
    things = applied()["jobsets"]
    things[0]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "sax"
    texts = [each.text for each in troubles(well(jobsets=things))]
    assert "ClusterQueue of Kueue is not installed" in texts


def test_an_older_kueue_is_told_of() -> None:
    old = with_kueue()
    old["customresourcedefinitions"][-1] = definition("clusterqueues.kueue.x-k8s.io", "v1beta1")
    found = troubles(well(**old), ClusterNeeds(uses=("kueue",)))
    assert any("served as v1beta1, but the manifests use v1beta2" in each.text for each in found)


@each_case(
    "image, issues",
    [
        ("registry.k8s.io/jobset/jobset:v0.9.1", ["jobset#1021", "jobset#1088"]),
        ("registry.k8s.io/jobset/jobset:v0.10.1", ["jobset#1088"]),
        ("registry.k8s.io/jobset/jobset:v0.11.0", []),
        ("gke.gcr.io/jobset/jobset:v0.10.1-gke.3@sha256:0a", ["jobset#1088"]),
        ("registry.k8s.io/jobset/jobset:latest", []),
        ("registry.k8s.io/lws/lws:v0.4.0", ["lws#225", "lws#291"]),
        ("registry.k8s.io/lws/lws:v0.4.2", ["lws#291"]),
        ("registry.k8s.io/lws/lws:v0.10.0", []),
        ("registry.k8s.io/kueue/kueue:v0.14.4", ["v1beta2"]),
        ("registry.k8s.io/kueue/kueue:v0.17.6", []),
        ("registry.k8s.io/kueue/kueue:v0.18.5", ["kueue#13968"]),
        ("registry.k8s.io/kueue/kueue:v0.19.1", ["kueue#13968"]),
        ("registry.k8s.io/kueue/kueue:v0.18.6", []),
        ("registry.k8s.io/kueue/kueue:v0.19.2", []),
        ("ghcr.io/kedacore/keda:2.16.1", ["keda#6464"]),
        ("ghcr.io/kedacore/keda:2.17.0", []),
        ("registry.example/pathways-job:v0.1.3", ["not looked for"]),
        ("registry.example/pathways-job:v0.1.4", []),
    ],
)
def test_releases_with_known_faults_are_told_of(image: str, issues: list[str]) -> None:
    project = image.split("/")[-1].partition(":")[0]
    name = "keda-operator" if project == "keda" else f"{project}-controller-manager"
    found = list(outdated("", controller(name, "", 1, image)))
    assert len(found) == bool(issues)
    assert all(issue in found[0].text for issue in issues)
    assert all(project in each.remedy for each in found)
    told_of = "".join(each.text for each in found)
    assert told_of.count("#") == sum("#" in each for each in issues)


def test_an_old_controller_is_a_warning_with_the_command_that_installs_a_new_one() -> None:
    old = controller(
        "jobset-controller-manager", "jobset-system", image="registry.k8s.io/jobset/jobset:v0.10.1"
    )
    found = only(well(controllers=[old]))
    assert found.level == WARNING
    assert "use 0.11.0 or the latest" in found.text
    assert "kubernetes-sigs/jobset/releases/latest" in found.remedy


def test_the_page_asks_for_the_releases_that_the_doctor_looks_for() -> None:
    page = (ROOT / "docs" / "how_to" / "kubernetes.md").read_text()
    for project, release in LEAST.items():
        assert f"{project} | {release} |" in page.lower(), project
        # Faults that came later are in some releases only, and were mended in all lines.
        first = max(each.fixed for each in FAULTS[project] if each.since == (0, 0, 0))
        assert told(first) == release


def test_kinds_that_are_not_installed_need_no_rights() -> None:
    at = well()
    lists = {"scaledobjects", "pathwaysjobs", "workloads"}
    seen = {name: things for name, things in at.seen.items() if name not in lists}
    assert not troubles(replace(at, seen=seen, forbidden=frozenset(lists)))
    crds = [*at.seen["customresourcedefinitions"], definition("scaledobjects.keda.sh", "v1alpha1")]
    seen["customresourcedefinitions"] = crds
    found = only(replace(at, seen=seen, forbidden=frozenset(lists)))
    assert "you may not list scaledobjects.keda.sh" in found.text
