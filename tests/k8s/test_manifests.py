"""Every kustomization, and every component on what it is for, renders and holds all checks."""

from __future__ import annotations

import pytest

from k8s.doctor.controllers import ADDITIONS
from tests.k8s.check import Subject, check, subjects
from tests.k8s.cluster import dry_run
from tests.k8s.manifests import K8S, objects_of
from tests.k8s.schemas import NO_CRDS, custom_schemas

SUBJECTS = subjects()
OVERLAYS = {
    "autoscaling",
    "autoscaling-keda",
    "cpu",
    "flex-start",
    "flex-start-without-kueue",
    "gpu",
    "inference-gateway",
    "leaderworkerset",
    "monitoring",
    "monitoring-gke",
    "one-jobset-per-replica",
    "pathways",
    "pathways/colocated",
    "pathways/jobset",
    "pathways/our-components",
    "tpu-v5e",
    "tpu-v6e",
    "tutorial",
}


def test_all_that_is_offered_is_there() -> None:
    grounds = {subject.ground for subject in SUBJECTS}
    assert {f"overlays/{name}" for name in OVERLAYS} <= grounds
    assert {"base", "control"} <= grounds
    flex_start = {"single-host", "multi-host", "queued"}
    assert {f"examples/flex-start/{name}" for name in flex_start} <= grounds


def test_every_component_is_tried() -> None:
    components = K8S / "components"
    paths = (
        *components.glob("*/kustomization.yaml"),
        *components.glob("parts/*/kustomization.yaml"),
    )
    offered = {path.parent.relative_to(components).as_posix() for path in paths}
    assert "parts/deployment" in offered
    assert offered <= {name for subject in SUBJECTS for name in subject.components}


def test_every_kustomization_begins_with_what_it_is_for() -> None:
    for path in K8S.rglob("kustomization.yaml"):
        assert path.read_text().startswith("# "), path


@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
def test_it_renders_and_holds_all_checks(subject: Subject) -> None:
    found = check(str(subject), objects_of(subject.render()))
    assert [str(finding) for finding in found if not finding.note] == []


def test_additions_have_the_version_that_the_doctor_looks_for() -> None:
    versions = {each.definition.partition(".")[2]: each.version for each in ADDITIONS.values()}
    used = {
        each["apiVersion"]
        for subject in SUBJECTS
        for each in objects_of(subject.render())
        if each["apiVersion"].partition("/")[0] in versions
    }
    assert used == {f"{group}/{version}" for group, version in versions.items()}


def test_custom_kinds_are_validated() -> None:
    if not custom_schemas():
        pytest.skip(NO_CRDS)
    checked = {kind for _, kind in custom_schemas()}
    assert checked >= {"JobSet", "LeaderWorkerSet", "PathwaysJob", "InferencePool"}
    for subject in (Subject("overlays/inference-gateway"), Subject("overlays/pathways")):
        found = check(str(subject), objects_of(subject.render()))
        said = [str(finding) for finding in found if "no schema here" in finding.text]
        assert not any(kind in text for text in said for kind in checked)


@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
def test_a_real_api_server_accepts_it(subject: Subject, dry_run_namespace: str) -> None:
    assert dry_run(subject.render(), dry_run_namespace) == ""
