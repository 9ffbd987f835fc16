"""The cluster's client: lightkube against an API server, well and in trouble."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest
import pytest_asyncio

from admin_server.provisioning.cluster import (
    JOBSET,
    LEADER_WORKER_SET,
    Cluster,
    ClusterRefused,
    ClusterTrouble,
    NameTaken,
    NotServed,
)
from admin_server.provisioning.kubernetes import Kubernetes, connect
from sax.errors import InvalidRequest
from tests.admin_server.provisioning.fake_controller import JOBSETS
from tests.admin_server.provisioning.template_files import jobset
from tests.kubernetes_api import KubernetesApi, kubernetes_api

pytest.importorskip("lightkube", reason="lightkube is not installed")


@pytest.fixture
def api(tmp_path: Path, monkeypatch) -> Generator[KubernetesApi]:
    with kubernetes_api(tmp_path, namespace="cell") as server:
        server.install("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets")
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
        yield server


@pytest_asyncio.fixture
async def cluster(api: KubernetesApi) -> AsyncGenerator[Kubernetes]:
    client = connect(None, timeout_s=0.5)
    yield client
    await client.close()


async def test_the_namespace_is_that_of_the_kubeconfig_or_the_one_that_is_named(api, cluster):
    assert cluster.namespace == "cell"
    other = connect("other")
    await other.create(JOBSET, jobset("a"))
    assert [thing["metadata"]["namespace"] for thing in api.objects(JOBSETS)] == ["other"]
    assert await cluster.objects(JOBSET, {}) == []
    await other.close()


async def test_one_of_several_values_of_a_label_is_enough(api, cluster: Cluster):
    for name in ("a", "b", "c"):
        body = jobset(name)
        body["metadata"]["labels"] = {"x": name}
        await cluster.create(JOBSET, body)
    found = await cluster.objects(JOBSET, {"x": ["a", "c"]})
    assert [each["metadata"]["name"] for each in found] == ["a", "c"]


async def test_the_http_client_does_not_log_each_request(api, cluster: Cluster, caplog):
    with caplog.at_level(logging.INFO):
        await cluster.objects(JOBSET, {})
    assert [record.name for record in caplog.records if "http" in record.name.lower()] == []


async def test_objects_are_made_and_found_by_their_labels(api, cluster: Cluster):
    body = jobset("a")
    body["metadata"]["labels"] = {"x": "1", "y": "2"}
    made = await cluster.create(JOBSET, body)
    assert made["metadata"]["uid"]
    assert await cluster.objects(JOBSET, {"x": "1", "y": "2"}) == [made]
    assert await cluster.objects(JOBSET, {"x": "1", "y": "3"}) == []


async def test_a_long_list_comes_in_pages(api, cluster: Cluster):
    for number in range(1100):
        api.add(JOBSETS, {"metadata": {"name": f"a-{number}"}})
    assert len(await cluster.objects(JOBSET, {})) == 1100
    assert [verb for verb, *_ in api.requests] == ["list"] * 3


async def test_only_the_very_object_is_deleted_and_with_its_parts(api, cluster: Cluster):
    made = await cluster.create(JOBSET, jobset("a"))
    await cluster.delete(JOBSET, "a", "the uid of one that was there before")
    assert api.names(JOBSETS) == ["a"]
    api.lingers = True  # as what is deleted in the foreground does
    await cluster.delete(JOBSET, "a", made["metadata"]["uid"])
    assert "deletionTimestamp" in api.objects(JOBSETS)[0]["metadata"]
    api.remove(JOBSETS, "a")
    await cluster.delete(JOBSET, "a", made["metadata"]["uid"])  # gone is gone


async def test_refusals_are_told_apart(api, cluster: Cluster):
    await cluster.create(JOBSET, jobset("a"))
    with pytest.raises(NameTaken, match="already exists"):
        await cluster.create(JOBSET, jobset("a"))
    with pytest.raises(NotServed, match="install its controller"):
        await cluster.objects(LEADER_WORKER_SET, {})
    api.checks[JOBSETS] = lambda body: "spec.replicatedJobs: too many"
    with pytest.raises(ClusterRefused, match="too many"):
        await cluster.create(JOBSET, jobset("b"))
    api.forbid("*", JOBSETS)
    with pytest.raises(NotServed, match="cannot list"):
        await cluster.objects(JOBSET, {})
    with pytest.raises(ClusterRefused, match="cannot delete"):
        await cluster.delete(JOBSET, "a", "u")


@pytest.mark.extended
@pytest.mark.parametrize("trouble", ["500", "503", "429", "hang", "drop", "lost"])
async def test_trouble_is_neither_a_refusal_nor_an_answer(api, cluster: Cluster, trouble):
    api.fail(trouble, times=1)
    with pytest.raises(ClusterTrouble, match="Kubernetes") as caught:
        await cluster.create(JOBSET, jobset("a"))
    assert not isinstance(caught.value, ClusterRefused | NotServed)
    assert api.names(JOBSETS) == (["a"] if trouble == "lost" else [])


async def test_a_server_that_is_not_there_is_trouble(tmp_path, monkeypatch):
    with kubernetes_api(tmp_path) as gone:
        monkeypatch.setenv("KUBECONFIG", str(gone.kubeconfig))
    client = connect(None)
    with pytest.raises(ClusterTrouble, match="does not answer"):
        await client.objects(JOBSET, {})
    await client.close()


@pytest.mark.extended
def test_an_admin_server_without_the_flag_imports_none_of_it():
    code = "import admin_server.__main__, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = done.stdout.split()
    assert "admin_server.process" in modules
    assert not [
        m for m in modules if m.startswith(("lightkube", "admin_server.provisioning.provisioner"))
    ]


@pytest.mark.parametrize("text", ["", "[]", "a: [", "clusters: []", "current-context: x"])
def test_a_kubeconfig_that_makes_no_sense_is_refused(tmp_path, monkeypatch, text):
    (tmp_path / "kubeconfig").write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with pytest.raises(InvalidRequest, match="finds no cluster"):
        connect(None)
