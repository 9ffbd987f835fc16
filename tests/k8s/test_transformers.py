"""A user's own kustomization on top of ours: what it changes reaches into custom kinds too."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.k8s.check import check, kustomization
from tests.k8s.kubelet import Json
from tests.k8s.manifests import K8S, objects_of, render
from tests.k8s.specs import containers, pod_templates

KINDS = {
    "JobSet": "overlays/tutorial",
    "LeaderWorkerSet": "overlays/inference-gateway",
    "PathwaysJob": "overlays/pathways",
    "Deployment": "overlays/cpu",
}


def on_top(folder: Path, ground: str, **more: Any) -> list[dict[str, Any]]:
    folder = folder.resolve()
    shutil.copy(K8S / "custom-kinds.yaml", folder)
    kustomization(folder, [ground], **more)
    return objects_of(render(folder))


def templates(objects: list[dict[str, Any]], kind: str) -> list[Json]:
    return [each for one in objects if one["kind"] == kind for each in pod_templates(one)]


@pytest.mark.parametrize(("kind", "ground"), KINDS.items())
def test_images_reach_the_pods(kind: str, ground: str, tmp_path: Path) -> None:
    names = ("sax-control", "sax-model-cpu", "sax-model-tpu")
    images = [{"name": name, "newName": f"reg.example/{name}", "newTag": "9"} for name in names]
    objects = on_top(tmp_path, ground, images=images)
    found = [each for one in templates(objects, kind) for each in containers(one["spec"])]
    assert found
    assert all(each["image"].startswith("reg.example/sax-") for each in found)
    assert all(each["image"].endswith(":9") for each in found)


def test_images_reach_the_components_of_a_pathways_job(tmp_path: Path) -> None:
    images = [{"name": "sax-model-tpu", "newName": "reg.example/tpu", "newTag": "9"}]
    ground = "overlays/pathways/our-components"
    objects = on_top(tmp_path, ground, images=images, configurations=["custom-kinds.yaml"])
    (job,) = [each for each in objects if each["kind"] == "PathwaysJob"]
    components = job["spec"]["customComponents"]
    assert {each["image"] for each in components} == {"reg.example/tpu:9"}


@pytest.mark.parametrize(("kind", "ground"), KINDS.items())
def test_labels_reach_the_pods(kind: str, ground: str, tmp_path: Path) -> None:
    labels = [{"pairs": {"team": "blue"}, "includeTemplates": True}]
    objects = on_top(tmp_path, ground, labels=labels, configurations=["custom-kinds.yaml"])
    found = templates(objects, kind)
    assert found
    assert all(each["metadata"]["labels"]["team"] == "blue" for each in found)


RENAMED = ("overlays/tutorial", "overlays/inference-gateway", "overlays/pathways")


@pytest.mark.parametrize("ground", [*RENAMED, "overlays/flex-start", "overlays/autoscaling-keda"])
def test_renamed_objects_are_found_by_those_that_refer_to_them(ground: str, tmp_path: Path) -> None:
    objects = on_top(
        tmp_path, ground, namePrefix="my-", configurations=["custom-kinds.yaml"], namespace="prod"
    )
    assert all(each["metadata"]["name"].startswith("my-") for each in objects)
    found = [str(each) for each in check(ground, objects) if not each.note]
    assert found == []
