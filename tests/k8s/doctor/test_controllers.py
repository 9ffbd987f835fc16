"""Kinds that a cluster lacks, and controllers that do nothing."""

from __future__ import annotations

import pytest

from k8s.doctor.finding import PROBLEM
from k8s.doctor.snapshot import ClusterNeeds
from tests.k8s.doctor.diagnosing import only, troubles
from tests.k8s.doctor.snapshots import controller, definition, webhooks, well


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


@pytest.mark.parametrize(
    ("use", "kind"),
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
