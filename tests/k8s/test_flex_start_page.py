"""The manifests that docs/how_to/flex_start.md applies are the ones that its text describes."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.each_case import each_case
from tests.k8s.manifests import K8S, ROOT, kubectl, objects_of, rendered
from tests.k8s.page.shell import blocks
from tests.k8s.specs import pod_specs

PAGE = (ROOT / "docs" / "how_to" / "flex_start.md").read_text()
TUTORIAL = (ROOT / "docs" / "how_to" / "kubernetes.md").read_text()
REPOSITORY = "us-west4-docker.pkg.dev/my-project/sax"
FLEX_START, TOPOLOGY = "cloud.google.com/gke-flex-start", "cloud.google.com/gke-tpu-topology"
QUEUED = {"key": "cloud.google.com/gke-queued", "operator": "Exists", "effect": "NoSchedule"}
HOSTS = {"single-host": 1, "multi-host": 8, "queued": 8}


def typed(page: str, word: str, folder: Path) -> str:
    """What the block with this word prints; kubectl sends nothing, but prints what it would."""
    (block,) = [text for text in blocks(page) if word in text]
    renders = "; ".join(
        line.replace("kubectl apply -k", "kubectl kustomize").replace("kubectl apply -f -", "cat")
        for line in block.splitlines()
        if line.startswith(("mkdir", "sed", "kubectl apply -k", "kubectl kustomize"))
    )
    binaries = Path(kubectl() or "kubectl").parent
    environment = {"PATH": f"{binaries}:{os.environ['PATH']}", "REPOSITORY": REPOSITORY}
    command = ["sh", "-eu", "-c", renders]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=True
    ).stdout


def job(name: str) -> Any:
    return next(each for each in rendered(f"examples/flex-start/{name}") if each["kind"] == "Job")


def pod(workload: dict[str, Any]) -> Any:
    return next(iter(pod_specs(workload)))


@pytest.mark.extended
@each_case("name", HOSTS)
def test_a_job_fills_its_slice_on_flex_start_nodes(name: str) -> None:
    made = job(name)
    spec, selector = pod(made), pod(made)["nodeSelector"]
    assert selector[FLEX_START] == "true"
    assert made["spec"]["parallelism"] == made["spec"]["completions"] == HOSTS[name]
    chips = int(spec["containers"][0]["resources"]["limits"]["google.com/tpu"])
    sides = [int(side) for side in selector[TOPOLOGY].split("x")]
    assert math.prod(sides) == chips * HOSTS[name]
    assert spec["containers"][0]["args"] == ["--expect", str(math.prod(sides))]


def test_only_the_queued_job_is_in_a_queue_and_waits_there() -> None:
    queued = job("queued")
    assert queued["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "sax"
    assert queued["spec"]["suspend"] is True
    assert QUEUED in pod(queued)["tolerations"]
    asked = queued["metadata"]["annotations"]["provreq.kueue.x-k8s.io/maxRunDurationSeconds"]
    assert int(asked) >= queued["spec"]["activeDeadlineSeconds"]
    for name in ("single-host", "multi-host"):
        assert "suspend" not in job(name)["spec"]
        assert QUEUED not in pod(job(name))["tolerations"]


def test_jobs_that_wait_for_nodes_are_given_the_day_that_the_page_waits() -> None:
    assert job("multi-host")["spec"]["activeDeadlineSeconds"] == 86_400
    assert "--timeout=24h" in PAGE


@pytest.mark.parametrize("name", HOSTS)
def test_what_the_page_pipes_to_kubectl_has_the_readers_image(name: str, tmp_path: Path) -> None:
    (tmp_path / "k8s").symlink_to(K8S)
    text = typed(PAGE, f"kustomize k8s/examples/flex-start/{name}", tmp_path)
    (made,) = [each for each in objects_of(text) if each["kind"] == "Job"]
    assert pod(made)["containers"][0]["image"] == f"{REPOSITORY}/sax-model-tpu:0.1.0"
    assert f"job/{made['metadata']['name']}" in PAGE


@pytest.mark.extended
@pytest.mark.parametrize(
    ("folder", "queued"), [("mkdir -p my-flex-cell", False), ("mkdir -p my-queued-cell", True)]
)
def test_the_readers_own_cell_goes_to_flex_start_nodes(
    folder: str, queued: bool, tmp_path: Path
) -> None:
    shutil.copytree(K8S, tmp_path / "k8s")
    (tmp_path / "my-cell").mkdir()
    (block,) = [text for text in blocks(TUTORIAL) if "cat > my-cell/kustomization.yaml" in text]
    own = block.partition("<<EOF\n")[2].partition("EOF\n")[0]
    (tmp_path / "my-cell" / "kustomization.yaml").write_text(own.replace("$", "a-"))
    made = objects_of(typed(PAGE, folder, tmp_path))
    sets = [each for each in made if each["kind"] == "JobSet"]
    assert len(sets) == 2
    for each in sets:
        assert pod(each)["nodeSelector"][FLEX_START] == "true"
        assert ("kueue.x-k8s.io/queue-name" in each["metadata"]["labels"]) == queued
        assert (QUEUED in pod(each)["tolerations"]) == queued
    assert any(each["kind"] == "LocalQueue" for each in made) == queued
