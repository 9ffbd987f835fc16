"""Templates of model servers, for an admin server that makes them: good manifests, and its own.

They are files of a ConfigMap, which kustomize does not look into. So each is held against what
kustomize makes of the overlay that it is taken from; `SAX_REWRITE_GOLDEN=1` writes them anew.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from admin_server.provisioning.object_names import object_name
from admin_server.provisioning.present import WORKLOADS
from admin_server.provisioning.templates import Template, TemplateFolder, object_for
from sax.names import CellId
from tests.each_case import each_case
from tests.k8s.check import check, kustomization
from tests.k8s.manifests import K8S, CannotRender, kubectl, objects_of, render, rendered

pytestmark = pytest.mark.skipif(kubectl() is None, reason="kubectl is not there")

OVERLAY = K8S / "overlays" / "provisioned"
TEMPLATES = OVERLAY / "templates"
CELL = CellId("test")
MODEL = "/sax/test/a_model-with-a-name-that-is-longer-than-any-name-of-kubernetes-may-be"
V6E = """
- op: replace
  path: /spec/replicas
  value: 1
- op: replace
  path: /spec/leaderWorkerTemplate/size
  value: 2
- op: replace
  path: /spec/leaderWorkerTemplate/workerTemplate/spec/nodeSelector
  value:
    cloud.google.com/gke-tpu-accelerator: tpu-v6e-slice
    cloud.google.com/gke-tpu-topology: 2x4
"""
# By the template's name: what it is taken from, its kind, the components, and what is changed.
SOURCES = {
    "v5e-4x8": ("overlays/one-jobset-per-replica/replica", "JobSet", [], ""),
    "v6e-2x4": ("overlays/leaderworkerset", "LeaderWorkerSet", ["memlock"], V6E),
}
FLAGS = {
    "--platform_chip=tpuv5e": "--platform_chip=tpuv6e",
    "--platform_topology=4x8": "--platform_topology=2x4",
}
MEMORY = {"v5e-4x8": "512Gi", "v6e-2x4": "256Gi"}  # chips x what each has


def source(name: str, folder: Path) -> dict[str, Any]:
    """The template as the overlay that it is taken from has it now."""
    ground, kind, components, changes = SOURCES[name]
    patches = [{"target": {"kind": kind}, "patch": changes}] if changes else []
    kustomization(folder, [ground], components=components, patches=patches)
    (body,) = [each for each in objects_of(render(folder)) if each["kind"] == kind]
    body["metadata"]["name"] = name
    body["metadata"]["labels"]["app.kubernetes.io/name"] = name
    body["metadata"].setdefault("annotations", {})["sax.dev/memory"] = MEMORY[name]
    if kind == "LeaderWorkerSet":
        (container,) = body["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"]
        container["args"] = [FLAGS.get(arg, arg) for arg in container["args"]]
    return body


@pytest.mark.parametrize("name", SOURCES)
def test_a_template_is_what_its_overlay_has(name: str, tmp_path: Path) -> None:
    file = TEMPLATES / f"{name}.yaml"
    try:
        body = source(name, tmp_path.resolve())
    except CannotRender as exc:
        pytest.fail(str(exc))
    if os.environ.get("SAX_REWRITE_GOLDEN"):
        head = [line for line in file.read_text().splitlines(True) if line.startswith("#")]
        file.write_text("".join(head) + yaml.safe_dump(body, sort_keys=False, width=200))
    assert yaml.safe_load(file.read_text()) == body


def templates() -> list[Template]:
    return list(TemplateFolder(str(TEMPLATES)).templates)


def test_every_template_is_in_the_config_map_and_good() -> None:
    (config,) = [
        each
        for each in rendered("overlays/provisioned")
        if each["kind"] == "ConfigMap" and each["metadata"]["name"] == "sax-templates"
    ]
    assert set(config["data"]) == {file.name for file in TEMPLATES.glob("*.yaml")}
    assert {each.name: each.devices for each in templates()} == {"v5e-4x8": 32, "v6e-2x4": 8}


@each_case("name", SOURCES)
def test_what_is_made_of_a_template_passes_every_check_of_manifests(name: str) -> None:
    (template,) = [each for each in templates() if each.name == name]
    made_name = object_name(template.name, MODEL, 999, template.longest)
    assert len(made_name) == template.longest
    made = object_for(template, MODEL, made_name, CELL)
    others = rendered("control")  # the account and the ConfigMap that its pods name
    found = [each for each in check(f"template {name}", [*others, made]) if not each.note]
    assert not found


def test_the_admin_server_may_do_what_it_does_and_no_more() -> None:
    (role,) = [each for each in rendered("overlays/provisioned") if each["kind"] == "Role"]
    rights = {
        (group, resource): sorted(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert rights.pop(("", "pods")) == ["list"]
    assert rights.pop((WORKLOADS.group, WORKLOADS.plural)) == ["list"]
    made = {(each.kind.group, each.kind.plural) for each in templates()}
    assert rights == dict.fromkeys(made, ["create", "delete", "list"])


def test_a_namespace_reaches_the_rights(tmp_path: Path) -> None:
    folder = tmp_path.resolve()
    kustomization(folder, ["overlays/provisioned"], namespace="cell")
    objects = objects_of(render(folder))
    (binding,) = [each for each in objects if each["kind"] == "RoleBinding"]
    (subject,) = binding["subjects"]
    assert (subject["name"], subject["namespace"]) == ("sax-admin", "cell")


def test_tokens_leave_the_admin_server_its_templates(tmp_path: Path) -> None:
    folder = tmp_path.resolve()
    kustomization(folder, ["overlays/provisioned"], components=["tokens"])
    objects = objects_of(render(folder))
    assert not [each for each in check("tokens on provisioned", objects) if not each.note]
    (admin,) = [
        each["spec"]["template"]["spec"]["containers"][0]
        for each in objects
        if each["kind"] == "Deployment" and each["metadata"]["name"] == "sax-admin-server"
    ]
    assert {"--kubernetes=/etc/sax-templates", "--tokens=/etc/sax/tokens.txt"} <= {*admin["args"]}
    mounts = [f"{mount['mountPath']}/" for mount in admin["volumeMounts"]]
    nested = [one for one in mounts for other in mounts if one != other and one.startswith(other)]
    assert not nested  # inside a volume that is read-only none can be mounted
