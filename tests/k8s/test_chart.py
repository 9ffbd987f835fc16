"""The chart, rendered by Helm's own library, makes the objects of the kustomizations."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.each_case import each_case
from tests.k8s.check import check
from tests.k8s.manifests import K8S, objects_of, rendered
from tests.tools.release.cutting import version_in

helm = pytest.importorskip("helm_python", reason="Helm's library has no wheel for this machine")
VALUES = sorted(path.parent.relative_to(K8S).as_posix() for path in K8S.glob("*/**/values.yaml"))
Values = Mapping[str, Any]


def chart(values: Values, place: Path | str = K8S) -> list[dict[str, Any]]:
    """Return the objects that `helm install` would apply."""
    with helm.Chart.load(place) as loaded:
        made = loaded.render(dict(values), name="sax", namespace="cell")
    texts = (text for name, text in made.items() if not name.endswith(".txt"))
    return objects_of("\n".join(texts))


def by_name(objects: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


def wrong_with(objects: list[dict[str, Any]]) -> list[str]:
    return [str(each) for each in check("control", objects) if not each.note]


def model_servers(values: Values, kind: str = "Deployment") -> dict[str, Any]:
    """Return the pod of the model servers of these values."""
    name = "sax-model-server" if kind == "Deployment" else "sax-model-server-set-0"
    spec = by_name(chart({"modelServers": {"kind": kind, **values}}))[kind, name]["spec"]
    if kind == "JobSet":
        return spec["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    return spec["template"]["spec"]


@pytest.mark.parametrize("name", VALUES)
def test_the_values_beside_a_kustomization_make_its_very_objects(name: str) -> None:
    values = yaml.safe_load((K8S / name / "values.yaml").read_text())
    assert by_name(chart(values)) == by_name(rendered(name))


def test_there_are_values_for_every_kind_of_machine_and_shape() -> None:
    shapes = {"cpu", "gpu", "tpu-v5e", "tpu-v6e", "one-jobset-per-replica", "leaderworkerset"}
    assert {*VALUES} == {"control", *(f"overlays/{each}" for each in shapes)}


def test_without_values_it_is_a_whole_cell_that_holds_all_checks() -> None:
    made = chart({})
    assert wrong_with(made) == []
    assert {"PersistentVolumeClaim", "Deployment", "NetworkPolicy"} <= {e["kind"] for e in made}


def test_the_registry_and_tag_of_all_images_are_given_once() -> None:
    made = chart({"images": {"registry": "registry.example/me", "tag": "9.9.9"}})
    images = {
        container["image"]
        for each in made
        if each["kind"] == "Deployment"
        for container in each["spec"]["template"]["spec"]["containers"]
    }
    names = ("sax-control", "sax-model-cpu")
    assert images == {f"registry.example/me/{name}:9.9.9" for name in names}
    assert wrong_with(made) == []


def test_images_are_of_the_charts_version_which_is_that_of_the_package() -> None:
    about = yaml.safe_load((K8S / "Chart.yaml").read_text())
    version = version_in((K8S.parent / "pyproject.toml").read_text())
    assert about["version"] == about["appVersion"] == version
    assert model_servers({})["containers"][0]["image"] == f"sax-model-cpu:{version}"


def test_a_model_server_gets_the_flags_resources_and_nodes_of_the_values() -> None:
    pod = model_servers(
        {
            "flags": ["--max_batch=4"],
            "nodeSelector": {"disk": "fast"},
            "resources": {"limits": {"memory": "9Gi"}},
        }
    )
    container = pod["containers"][0]
    assert container["args"][:3] == ["--port=10001", "--platform_chip=cpu", "--platform_topology=1"]
    assert container["args"][-1] == "--max_batch=4"
    assert container["resources"] == {"limits": {"memory": "9Gi"}}
    assert pod["nodeSelector"] == {"disk": "fast"}


def test_the_hosts_of_a_replica_are_told_to_every_pod_of_it() -> None:
    (container,) = model_servers({"hosts": 4, "device": "tpu"}, "JobSet")["containers"]
    assert {"name": "SAX_HOSTS", "value": "4"} in container["env"]


@each_case(
    "values, told",
    [
        ({"modelServer": {}}, "modelServer"),
        ({"gateway": {"service": "Loadbalancer"}}, "service"),
        ({"cell": "test"}, "cell"),
        ({"images": {"registry": "https://registry.example"}}, "registry"),
        ({"modelServers": {"flags": ["max_batch=4"]}}, "flags"),
        ({"admin": {"replicas": 2}}, "without a bucket"),
        ({"modelServers": {"hosts": 2}}, "one host"),
    ],
)
def test_values_that_nothing_reads_or_that_cannot_work_are_refused(
    values: Values, told: str
) -> None:
    with pytest.raises(helm.HelmError, match=told):
        chart(values)


def test_helm_finds_nothing_to_complain_of_but_the_picture() -> None:
    report = helm.lint(K8S, strict=True)
    assert [each["error"] for each in report["messages"]] == ["icon is recommended"]
    assert report["errors"] == []


def test_a_packed_chart_holds_what_its_templates_read_and_no_programs(tmp_path: Path) -> None:
    packed = helm.package(K8S, destination=tmp_path)
    assert by_name(chart({}, packed)) == by_name(chart({}))
    with tarfile.open(packed) as archive:
        assert [name for name in archive.getnames() if name.endswith(".py")] == []
