"""What `sax k8s render` makes is what kubectl's kustomize makes of the overlays."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from k8s.render.fields import pod_of
from k8s.render.pathways.component import PROGRAMS, PathwaysComponent
from k8s.render.pathways.expansion import jobset_of
from tests.each_case import each_case
from tests.k8s.manifests import kubectl, objects_of
from tests.k8s.manifests import render as kustomize
from tests.k8s.manifests import rendered as kustomized
from tests.k8s.render.orders import by_name, callers_of_admins, pathways, rendered

pytestmark = pytest.mark.skipif(kubectl() is None, reason="kubectl is not installed")

_OURS = tuple(PathwaysComponent(kind, image="sax") for kind in PROGRAMS)
_ELASTIC: dict[str, Any] = {"slices": 2, "elastic_slices": 1, "max_slice_restarts": 4}


def _plain(servers: Any) -> dict[tuple[str, str], Any]:
    """Without what an overlay does not say: to which set they belong, and the order of flags."""
    made = by_name(servers)
    for each in made.values():
        pod = pod_of(each)
        pod["containers"][0]["args"].sort()
        template = each["spec"].get("leaderWorkerTemplate", {}).get("workerTemplate")
        template = template or each["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
        for meta in (each["metadata"], template["metadata"]):
            meta["labels"].pop("app.kubernetes.io/instance", None)
    return made


@pytest.mark.extended
@pytest.mark.parametrize(
    ("kind", "overlay"),
    [
        ("jobset", "overlays/one-jobset-per-replica"),
        ("one-jobset", "overlays/tutorial"),
        ("leaderworkerset", "overlays/leaderworkerset"),
    ],
)
def test_the_servers_are_those_of_the_overlay(kind: str, overlay: str) -> None:
    theirs = [each for each in kustomized(overlay) if each["kind"] in ("JobSet", "LeaderWorkerSet")]
    assert _plain(rendered(kind=kind).servers) == _plain(theirs)


def test_the_control_plane_is_kustomizes_but_for_its_placeholders() -> None:
    ours, theirs = by_name(rendered(part="control").control), by_name(kustomized("control"))
    config = ours["ConfigMap", "sax-cell"]["data"]
    assert config.pop("GSBUCKET") == "my-sax"
    theirs["ConfigMap", "sax-cell"]["data"].pop("GSBUCKET")
    assert ours == theirs


@pytest.mark.extended
@pytest.mark.parametrize("part", ["all", "control", "servers"])
def test_a_folder_of_it_is_a_kustomization(part: str, tmp_path: Path) -> None:
    made = rendered(part=part, namespace="serving")
    for name, text in made.as_files().items():
        (tmp_path / name).write_text(text)
    assert by_name(objects_of(kustomize(tmp_path))) == by_name(made.objects)


def _plain_head(each: dict[str, Any]) -> dict[str, Any]:
    """Without what an overlay does not say: the number of the set, its label, order of flags."""
    made = copy.deepcopy(each)
    made["metadata"]["name"] = "sax-pathways"
    template = made["spec"].get("controller", {}).get("template")
    template = template or made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    for meta in (made["metadata"], template["metadata"]):
        meta["labels"].pop("app.kubernetes.io/instance", None)
    template["spec"]["containers"][0]["args"].sort()
    return made


@pytest.mark.extended
@each_case(
    "overlay, kind, options",
    [
        ("", "pathways", {**_ELASTIC, "version": "latest"}),
        (
            "/colocated",
            "pathways",
            {**_ELASTIC, "version": "latest", "deployment_mode": "colocate_head_with_workers"},
        ),
        ("/our-components", "pathways", {**_ELASTIC, "components": _OURS, "trusts_network": True}),
        ("/jobset", "pathways-jobset", _ELASTIC),
    ],
)
def test_the_server_is_that_of_the_overlay(
    overlay: str, kind: str, options: dict[str, Any]
) -> None:
    objects = kustomized(f"overlays/pathways{overlay}")
    (theirs,) = [each for each in objects if each["kind"] in ("PathwaysJob", "JobSet")]
    (ours,) = pathways(kind, directory="gs://bucket/pathways", **options).servers
    text = json.dumps(_plain_head(theirs)).replace("BUCKET_NAME", "bucket")
    assert _plain_head(ours) == json.loads(text)


def test_admin_servers_of_the_overlay_answer_heads_on_the_hosts_network() -> None:
    assert callers_of_admins(kustomized("overlays/pathways")) is None


def test_the_overlay_without_the_controller_is_what_the_controller_makes_and_more() -> None:
    (theirs,) = [each for each in kustomized("overlays/pathways") if each["kind"] == "PathwaysJob"]
    (ours,) = [each for each in kustomized("overlays/pathways/jobset") if each["kind"] == "JobSet"]
    made = jobset_of(theirs)
    # What the controller drops (the pod's labels) and cannot say (the workers' service account).
    own = ours["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["metadata"]
    made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["metadata"] |= own
    made["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["spec"] |= {
        "serviceAccountName": "sax-model-server"
    }
    assert made == ours
