"""The cell of the tutorial's overlay, as local processes: the shape that a cluster would have.

Every pod of the rendered manifests runs with its own host name, address, environment and flags, and
finds all else from those: the bucket, the admin servers that lead by turns, the hosts of its
replica. Only the model is shrunk, by overrides, and the devices are a CPU's.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.demo_model import ROOT
from tests.hosts.network import network
from tests.hosts.test_tutorial import LOADED, MODEL, PATH, SHRUNK
from tests.k8s.local_cluster import LocalCluster, addresses
from tests.k8s.manifests import K8S, objects_of, render
from tests.k8s.pods import Pod, pods_of
from tests.stores.gcs import gcs_server

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

BUCKET = "sax-tutorial"
REPLICAS, HOSTS, CHIPS = 2, 8, 4
# What sixteen hosts would have and two cores have not: time, and memory for each slot's pages.
FLAGS = {"sax-model-tpu": ("--slots=2", "--host_timeout_seconds=60")}
# In place of what a TPU host's own machine image says.
MACHINE = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(CHIPS), "NPROC": "16"}
LOAD_S = 900.0


def tutorial() -> list[Any]:
    """The overlay, with the bucket's name put in as its reader is told to."""
    objects = objects_of(render(K8S / "overlays" / "tutorial"))
    for each in objects:
        if each["kind"] == "ConfigMap" and each["metadata"]["name"] == "sax-cell":
            each["data"]["GSBUCKET"] = BUCKET
    return objects


class Cell:
    """The running cell, asked from outside by the tutorial's curls."""

    def __init__(self, cluster: LocalCluster, pods: list[Pod]) -> None:
        self.cluster = cluster
        self.admins = [pod.name for pod in pods if pod.labels["app"] == "sax-admin-server"]
        self.gateways = [pod.name for pod in pods if pod.labels["app"] == "sax-http"]
        self.hosts = [pod for pod in pods if pod.labels["app"] == "sax-model-server"]
        self.primaries = [pod.name for pod in self.hosts if pod.index == 0]

    def curl(self, method: str, route: str, data: object) -> Any:
        """By the first gateway, whose address stands for the load balancer's."""
        url = f"{self.cluster.address(self.gateways[0])}:8888/{route}"
        words = ["curl", "--noproxy", "*", "--request", method, "-s", url, "--data"]
        header = ["--header", "Content-type: application/json"]
        done = subprocess.run(
            [*words, json.dumps(data), *header], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def sax(self, *words: str) -> None:
        """Run the command line against the admin servers, which takes what the curls cannot say."""
        admins = ",".join(f"{self.cluster.address(name)}:10000" for name in self.admins)
        command = [sys.executable, "-m", "sax.cli", "--admin", admins, *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
        assert done.returncode == 0, done.stderr

    def says(self, pod: str, port: int, path: str) -> tuple[int, str]:
        try:
            url = f"http://{self.cluster.address(pod)}:{port}{path}"
            reply = httpx.get(url, timeout=10, trust_env=False)
        except httpx.TransportError as exc:
            return 0, str(exc)
        return reply.status_code, reply.text

    def all_say_200(self, path: str) -> bool:
        return all(self.says(pod.name, 10003, path)[0] == 200 for pod in self.hosts)

    def leader(self) -> str:
        """The admin server that leads; "" while none does."""
        ready = [name for name in self.admins if self.says(name, 10002, "/readyz")[0] == 200]
        return ready[0] if len(ready) == 1 else ""

    def active(self) -> int:
        return int(self.curl("GET", "listcell", {"model": MODEL}).get("active_replicas", 0))


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Cell]:
    planned = pods_of(tutorial())
    with network(len(planned)) as wires:
        hosts = addresses(wires, planned)
        pods = pods_of(tutorial(), lambda pod: hosts[pod.name].address)
        with gcs_server(wires.gateway, BUCKET) as bucket:
            cluster = LocalCluster(tmp_path, wires, hosts, {**MACHINE, **bucket.env}, FLAGS)
            try:
                cluster.start(pods)
                yield Cell(cluster, pods)
            finally:
                cluster.close()


def test_the_pods_of_the_tutorial_become_two_replicas_of_eight_hosts(cell: Cell) -> None:
    assert len(cell.hosts) == REPLICAS * HOSTS
    eventually = cell.cluster.eventually
    eventually(lambda: cell.all_say_200("/readyz"), "every host is ready", LOAD_S)
    eventually(lambda: cell.leader() != "", "one admin server leads", 60)
    publish_and_wait(cell)
    both_generate(cell)
    outlive_the_leader(cell)
    assert cell.curl("POST", "unpublish", {"model": MODEL}) == {"model": MODEL}
    assert cell.all_say_200("/healthz")
    ended = cell.cluster.stop()
    # A host that ends with 0 would be done for good in the eyes of its Job.
    hosts = {pod.name for pod in cell.hosts}
    assert ended == {name: 143 if name in hosts else 0 for name in ended}


def publish_and_wait(cell: Cell) -> None:
    cell.sax("publish", MODEL, PATH, "None", str(REPLICAS), *SHRUNK.split())
    publication = {"model": MODEL, "model_path": PATH, "checkpoint": "None", "replicas": REPLICAS}
    again = cell.curl("POST", "publish", publication)  # as the tutorial does, without overrides
    assert list(again) == ["Error"]
    assert "already published" in again["Error"]
    cell.cluster.eventually(lambda: cell.active() == REPLICAS, "both are active", LOAD_S)
    assert all(LOADED in cell.cluster.log(primary) for primary in cell.primaries)


def both_generate(cell: Cell) -> None:
    query = {"model": MODEL, "query": "How many days are in a week?"}
    samples = cell.curl("POST", "generate", query)["generate_response"]
    assert all(isinstance(text, str) for text, _ in samples)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: cell.curl("POST", "generate", query), range(8)))
    assert all(answer["generate_response"] for answer in answers)
    for primary in cell.primaries:
        figures = cell.says(primary, 10003, "/metrics")[1]
        generated = [line for line in figures.splitlines() if "sax_generated_tokens_total{" in line]
        assert generated
        assert float(generated[0].rpartition(" ")[2]) > 0


def outlive_the_leader(cell: Cell) -> None:
    """The other admin server takes over, and nothing that was published is lost."""
    leader = cell.leader()
    cell.cluster.kill(leader)
    cell.admins.remove(leader)
    cell.cluster.forget(leader)
    cell.cluster.eventually(lambda: cell.leader() != "", "the other one leads", 60)
    cell.cluster.eventually(lambda: cell.active() == REPLICAS, "both are active still", 120)
    query = {"model": MODEL, "query": "How many days are in a week?"}
    assert cell.curl("POST", "generate", query)["generate_response"]
