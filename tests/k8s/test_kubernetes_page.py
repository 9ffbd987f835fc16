"""What docs/how_to/kubernetes.md tells its reader to type, as far as that needs no cluster.

The flags of its commands are checked in tests/k8s/page.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.demo_model import ROOT
from tests.k8s.manifests import K8S, kubectl, objects_of
from tests.k8s.page.shell import blocks

PAGE = (ROOT / "docs" / "how_to" / "kubernetes.md").read_text()
BLOCKS = blocks(PAGE)
VARIABLES = {
    "PROJECT_ID": "my-project",
    "BUCKET_NAME": "my-project-sax",
    "REPOSITORY": "us-west4-docker.pkg.dev/my-project/sax",
}


def block(word: str) -> str:
    """The one block that has it."""
    (found,) = [text for text in BLOCKS if word in text]
    return found


@pytest.fixture
def cell(tmp_path: Path) -> list[dict[str, Any]]:
    """What the reader's own folder renders to."""
    return written("my-cell", tmp_path)


def written(folder: str, tmp_path: Path) -> list[dict[str, Any]]:
    """Run the block of the page that writes a folder, and render it."""
    shutil.copytree(K8S, tmp_path / "k8s")
    lines = block(f"cat > {folder}/kustomization.yaml").splitlines(keepends=True)
    script = "".join(line for line in lines if not line.startswith("kubectl"))
    subprocess.run(
        ["sh", "-eu", "-c", script], cwd=tmp_path, env={**os.environ, **VARIABLES}, check=True
    )
    done = subprocess.run(
        [kubectl() or "kubectl", "kustomize", folder],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return objects_of(done.stdout)


def test_the_readers_own_folder_puts_bucket_account_and_images_into_the_tutorials_overlay(
    cell: list[dict[str, Any]],
) -> None:
    text = yaml.safe_dump_all(cell)
    assert "GSBUCKET: my-project-sax" in text
    images = set(re.findall(r"image: (\S+)", text))
    assert images == {
        f"{VARIABLES['REPOSITORY']}/sax-control:0.1.0",
        f"{VARIABLES['REPOSITORY']}/sax-model-tpu:0.1.0",
    }
    assert "BUCKET_NAME" not in text
    assert "PROJECT_ID" not in text


def test_every_folder_that_can_be_applied_is_on_the_page_and_every_name_on_it_exists() -> None:
    table = PAGE.partition("Contents of `k8s/`")[2].partition("\n\n`sax k8s render`")[0]
    told = set(re.findall(r"`((?:overlays/|components/|examples/)?[a-z0-9-]+)`", table))
    named = {each if (K8S / each).is_dir() else f"overlays/{each}" for each in told}
    there = {
        path.parent.relative_to(K8S).as_posix()
        for path in [*K8S.glob("*/kustomization.yaml"), *K8S.glob("*/*/kustomization.yaml")]
    }
    assert there - named == set()
    assert all((K8S / each).is_dir() for each in named), named


def test_the_names_that_the_tutorials_commands_use_are_those_of_the_overlay(
    cell: list[dict[str, Any]],
) -> None:
    names = {(each["kind"], each["metadata"]["name"]) for each in cell}
    assert ("Service", "sax-http-lb") in names
    assert ("JobSet", "sax-model-server-set") in names
    assert ("Deployment", "sax-admin-server") in names
    assert ("Deployment", "sax-http") in names
    pods = "sax-model-server-set-sax-model-server-REPLICA-HOST-"
    assert pods in PAGE


def test_the_commands_of_the_page_are_spelled_as_a_shell_reads_them() -> None:
    for text in (*BLOCKS, *blocks((ROOT / "docs" / "how_to" / "flex_start.md").read_text())):
        subprocess.run(["sh", "-n", "-c", text], check=True)


def test_a_second_cell_has_its_own_name_folder_and_namespace(tmp_path: Path) -> None:
    cell = written("cell-b", tmp_path)
    named = {(each["kind"], each["metadata"]["name"]): each for each in cell}
    assert {each["metadata"]["namespace"] for each in cell} == {"cell-b"}
    told = {"SAX_CELL": "/sax/b", "GSBUCKET": "gs://my-project-sax/b"}
    assert named["ConfigMap", "sax-cell"]["data"] == told
    (trigger,) = named["ScaledObject", "sax-model-server-set"]["spec"]["triggers"]
    assert 'sax_admin_wanted_replicas{namespace="cell-b"}' in trigger["metadata"]["query"]
