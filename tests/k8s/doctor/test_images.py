"""Images without a home, and pulls that fail."""

from __future__ import annotations

from dataclasses import replace

import pytest

from k8s.doctor.diagnosis import diagnose
from k8s.doctor.finding import PROBLEM
from tests.k8s.doctor.diagnosing import NOTHING, only, troubles
from tests.k8s.doctor.snapshots import REGISTRY, applied, pod, waiting, well


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
