"""The API server of the tests, as lightkube finds it."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.each_case import each_case
from tests.kubernetes_api import KubernetesApi, kubernetes_api, selects

lightkube = pytest.importorskip("lightkube", reason="lightkube is not installed")
generic = pytest.importorskip("lightkube.generic_resource")

JOBSETS = "jobsets.jobset.x-k8s.io"


@pytest.fixture
def api(tmp_path: Path) -> Generator[KubernetesApi]:
    with kubernetes_api(tmp_path) as server:
        server.install("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets")
        yield server


@pytest.fixture
def client(api: KubernetesApi) -> Generator[object]:
    client = lightkube.Client(config=lightkube.KubeConfig.from_file(api.kubeconfig))
    yield client
    client._client.close()


JobSet = generic.create_namespaced_resource("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets")


def _jobset(name: str, **labels: str) -> object:
    return JobSet(metadata={"name": name, "labels": labels}, spec={"replicatedJobs": []})


def test_objects_are_made_found_listed_and_deleted(api, client):
    made = client.create(_jobset("a", app="x"))
    client.create(_jobset("b", app="y"))
    assert made.metadata.uid
    assert client.get(JobSet, "a").metadata.resourceVersion == made.metadata.resourceVersion
    names = [thing.metadata.name for thing in client.list(JobSet, labels={"app": "y"})]
    assert names == ["b"]
    assert len(list(client.list(JobSet, chunk_size=1))) == 2
    client.delete(JobSet, "a")
    assert api.names(JOBSETS) == ["b"]


def test_a_name_that_is_taken_is_a_conflict_with_a_status(api, client):
    client.create(_jobset("a"))
    with pytest.raises(lightkube.ApiError) as caught:
        client.create(_jobset("a"))
    assert (caught.value.status.code, caught.value.status.reason) == (409, "AlreadyExists")


def test_what_is_not_there_or_not_installed_is_told_apart_by_its_message(api, client):
    with pytest.raises(lightkube.ApiError, match='"a" not found'):
        client.get(JobSet, "a")
    other = generic.create_namespaced_resource("some.where", "v1", "Thing", "things")
    with pytest.raises(lightkube.ApiError, match="could not find the requested resource"):
        list(client.list(other))


def test_rights_can_be_taken_away_and_given_back(api, client):
    api.forbid("create", JOBSETS)
    with pytest.raises(lightkube.ApiError, match="cannot create") as caught:
        client.create(_jobset("a"))
    assert caught.value.status.code == 403
    api.allow_all()
    client.create(_jobset("a"))


def test_patches_merge_and_apply_makes_what_is_missing(api, client):
    client.create(_jobset("a", app="x", gone="1"))
    patched = client.patch(JobSet, "a", {"metadata": {"labels": {"gone": None, "new": "2"}}})
    assert patched.metadata.labels == {"app": "x", "new": "2"}
    client.apply(_jobset("b"), field_manager="test")
    assert api.names(JOBSETS) == ["a", "b"]


def test_definitions_and_nodes_are_of_the_cluster(api, client):
    from lightkube.resources.apiextensions_v1 import CustomResourceDefinition
    from lightkube.resources.core_v1 import Node

    api.add("nodes", {"metadata": {"name": "n1", "labels": {"pool": "tpu"}}})
    assert [n.metadata.name for n in client.list(Node, labels={"pool": "tpu"})] == ["n1"]
    assert [c.spec.names.kind for c in client.list(CustomResourceDefinition)] == ["JobSet"]


@pytest.mark.parametrize("trouble", ["500", "drop", "lost"])
def test_a_trouble_strikes_as_often_as_asked(api, client, trouble):
    import httpx2

    api.fail(trouble, "create", times=1)
    with pytest.raises(httpx2.HTTPError):
        client.create(_jobset("a"))
    assert api.names(JOBSETS) == (["a"] if trouble == "lost" else [])
    client.create(_jobset("b"))


def test_a_deletion_in_the_foreground_lingers_until_its_parts_are_gone(api, client):
    api.lingers = True
    client.create(_jobset("a"))
    client.delete(JobSet, "a", cascade=lightkube.types.CascadeType.FOREGROUND)
    assert client.get(JobSet, "a").metadata.deletionTimestamp
    with pytest.raises(lightkube.ApiError, match="already exists"):
        client.create(_jobset("a"))
    api.remove(JOBSETS, "a")
    client.create(_jobset("a"))


@each_case(
    "selector, holds",
    [
        ("a=1", True),
        ("a==2", False),
        ("a!=2,b", True),
        ("!b", False),
        ("a in (1, 2),b notin (9)", True),
        ("c", False),
    ],
)
def test_label_selectors(selector, holds):
    assert selects(selector, {"a": "1", "b": "2"}) is holds
