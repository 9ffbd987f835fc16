"""Every command of kubernetes.md and flex_start.md (docs/how_to) is one that its program takes.

gcloud, docker and curl as of programs.json, kubectl and sax as they are installed. A page is
broken in every way that is looked for, too.
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from k8s.render.gcloud import head_pool_command, install_command, node_pool_command
from sax.slices import slice_of
from tests.k8s.manifests import ROOT
from tests.k8s.page.__main__ import gcloud
from tests.k8s.page.check import check, check_page
from tests.k8s.page.programs import programs
from tests.k8s.page.shell import blocks, commands

TUTORIAL, FLEX_START = "kubernetes.md", "flex_start.md"
PAGES = {name: (ROOT / "docs" / "how_to" / name).read_text() for name in (TUTORIAL, FLEX_START)}
# The steps of Google's two pages, in their order.
STEPS = {
    TUTORIAL: [
        "Before you begin",
        "Prepare the environment",
        "Create a GKE Standard cluster",
        "Create a Cloud Storage bucket",
        "Configure workload access",
        "Deploy Saxml",
        "Use Saxml",
        "Publish the model",
        "Generate",
        "Unpublish the model",
        "Clean up",
    ],
    FLEX_START: [
        "Before you begin",
        "Create a node pool with flex-start",
        "Verify the status of flex-start in the node pool",
        "Run a batch workload",
        "Single-host",
        "Multi-host",
        "With Kueue",
        "Create a node pool with queued provisioning",
        "Create the Kueue resources",
        "Run your Job",
        "Clean up",
    ],
}
# What a node pool on flex-start is made with.
FLEX_FLAGS = {
    "--flex-start",
    "--num-nodes=0",
    "--enable-autoscaling",
    "--min-nodes=0",
    "--location-policy=ANY",
    "--reservation-affinity=none",
    "--no-enable-autorepair",
}
# On which page, what is written there, what is written instead, and what must be said of it.
BROKEN = {
    "a flag of gcloud": (TUTORIAL, "--tpu-topology 4x8", "--tpu-topolgy 4x8", "no flag --tpu-t"),
    "a verb of gcloud": (TUTORIAL, "node-pools create", "nodepools create", "no such command"),
    "a switch of gcloud": (
        FLEX_START,
        "--no-enable-autorepair",
        "--no-autorepair",
        "no flag --no-",
    ),
    "a switch with a value": (FLEX_START, "--flex-start --num", "--flex-start=1 --num", "no value"),
    "a value from a list": (FLEX_START, "affinity=none", "affinity=nothing", "one of any, none"),
    "a value that lacks": (FLEX_START, "--location-policy=ANY", "--location-policy", "its value"),
    "a flag of kubectl": (TUTORIAL, "wait --namespace", "wait --namspace", "no flag --namspace"),
    "a short flag of kubectl": (FLEX_START, "=true -L ", "=true -Y ", "no flag -Y"),
    "a verb of kubectl": (TUTORIAL, "rollout status", "rollout state", "no such command"),
    "a flag of docker": (TUTORIAL, "--target $target", "--targets $target", "no flag --targets"),
    "a verb of docker": (TUTORIAL, "docker push", "docker pusch", "no such command"),
    "a flag of curl": (TUTORIAL, "--data '{\n", "--dada '{\n", "no flag --dada"),
    "an option of sax": (TUTORIAL, "doctor --topology", "doctor --topologie", "--topologie"),
    "a command of sax": (FLEX_START, "sax k8s doctor", "sax k8s docter", "docter"),
    "a command in a sentence": (TUTORIAL, "set --replicas 3`", "set --replica 3`", "no flag --r"),
    "an extra of ours": (TUTORIAL, "'.[kubernetes]'", "'.[k8s]'", "pip install with one of"),
    "a folder": (TUTORIAL, "apply -k my-cell", "apply -k your-cell", "your-cell"),
    "a folder of ours": (
        FLEX_START,
        "kustomize k8s/examples/flex",
        "kustomize k8s/example",
        "k8s/",
    ),
    "a file of ours": (FLEX_START, "apply -f k8s/overlays", "apply -f k8s/overlay", "no file k8s/"),
    "an address of a controller": (
        TUTORIAL,
        "jobset/releases",
        "jobsets/releases",
        "doctor` tells",
    ),
    "a field of a body": (TUTORIAL, '"replicas": 2', '"replica": 2', "'replica' was unexpected"),
    "a route": (TUTORIAL, "/listcell --data", "/listcells --data", "there is no GET /listcells"),
    "a method": (TUTORIAL, "--request GET", "--request PUT", "there is no PUT /listcell"),
    "a body that is no JSON": (TUTORIAL, '"query": "How', '"query" "How', "is not JSON"),
    "a variable": (TUTORIAL, "export PROJECT_ID=my-project", "export", "$PROJECT_ID is read"),
    "an unknown program": (TUTORIAL, "docker push", "podman push", "no table"),
}


@pytest.mark.extended
@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_one_that_its_program_takes(page: str) -> None:
    assert check_page(PAGES[page]) == []


@pytest.mark.extended
@pytest.mark.parametrize("case", BROKEN)
def test_a_page_that_is_wrong_is_found(case: str) -> None:
    page, right, wrong, said = BROKEN[case]
    assert right in PAGES[page]
    found = check_page(PAGES[page].replace(right, wrong))
    assert any(said in finding for finding in found), found


@pytest.mark.extended
def test_the_commands_of_all_other_pages_for_clusters_and_containers_are_such_ones_too() -> None:
    for path in sorted((ROOT / "docs").rglob("*.md")):
        for block in blocks(path.read_text()):
            for command in commands(block):
                if command[0] in ("kubectl", "gcloud", "docker") and path.name not in PAGES:
                    assert check(tuple(command)) == [], (path.name, command)


@pytest.mark.parametrize("page", PAGES)
def test_the_steps_of_googles_page_are_headings_in_the_same_order(page: str) -> None:
    headings = [found[1] for found in re.finditer(r"^##+ (.*)$", PAGES[page], re.MULTILINE)]
    at = [headings.index(step) for step in STEPS[page]]
    assert at == sorted(at)


def test_every_node_pool_on_flex_start_is_made_with_all_of_its_flags() -> None:
    created = re.findall(r"node-pools create.*?GKE_METADATA", PAGES[FLEX_START], re.DOTALL)
    assert len(created) == 4
    for command in created:
        assert set(command.split()) >= FLEX_FLAGS


def test_the_commands_of_render_and_doctor_are_ones_that_their_programs_take() -> None:
    single, multi = slice_of("v5e:2x2"), slice_of("v5e:4x8")
    for command in (
        node_pool_command(multi, "tpu"),
        node_pool_command(single, "tpu", flex_start=True),
        node_pool_command(multi, "tpu", spot=True),
        head_pool_command("head", 1),
        *(install_command(project) for project in ("jobset", "lws", "kueue")),
    ):
        assert check(tuple(shlex.split(command))) == []


@pytest.mark.extended
def test_the_table_is_that_of_the_gcloud_installed_here_if_it_is_the_same_version() -> None:
    program = shutil.which("gcloud")
    sdk = Path(program).resolve().parents[1] if program else Path()
    table = dict(programs()["gcloud"])
    if not program or (sdk / "VERSION").read_text().strip() != table["version"]:
        pytest.skip(f"gcloud {table['version']} is not installed")
    table.pop("read on")
    assert gcloud(sdk) == table
