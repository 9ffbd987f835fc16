"""The cell's name and its metrics: one place says the name, and no query mixes two cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml

import admin_server.__main__ as admin_server
import model_server.__main__ as model_server
from sax.container import ADMIN, MODEL, command
from sax.names import CellId
from tests.each_case import each_case
from tests.k8s.check import Subject
from tests.k8s.flags import role_of
from tests.k8s.manifests import kubectl, kustomizations, name_of, objects_of
from tests.k8s.pods import pods_of
from tests.k8s.render.orders import rendered

OTHER = "/sax/other"


def in_other_cell(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Patch the ConfigMap as its comment says, and add what templates in ConfigMaps are of."""
    templates: list[dict[str, Any]] = []
    for each in objects:
        if (each["kind"], each["metadata"]["name"]) == ("ConfigMap", "sax-cell"):
            each["data"]["SAX_CELL"] = OTHER
            each["data"] |= {"GSBUCKET": "bucket"} if "GSBUCKET" in each["data"] else {}
        elif each["metadata"]["name"] == "sax-templates":
            templates += map(yaml.safe_load, each["data"].values())
    return [*objects, *templates]


def cells(objects: list[dict[str, Any]]) -> set[tuple[str, str]]:
    """Return the role and the cell of each process that has one."""
    told = {
        (role, *command(role, args, container.env | {"POD_IP": "10.0.0.1"})[0][2:])
        for pod in pods_of(in_other_cell(objects))
        for container in pod.containers
        for role, args in [role_of(container)]
        if role in PARSERS
    }
    return {(role, str(PARSERS[role](list(flags)))) for role, *flags in told}


PARSERS: dict[str, Callable[[list[str]], CellId | str]] = {
    ADMIN: lambda flags: admin_server.parse(flags).cell,
    MODEL: lambda flags: model_server.make_config(flags).sax_cell,
}
CELLS = [each for each in kustomizations() if "overlays" in each.parts]


@pytest.mark.skipif(kubectl() is None, reason="kubectl is not there")
@each_case("name", [name_of(each) for each in CELLS if not each.name.startswith("monitoring")])
def test_all_of_an_overlay_is_in_the_cell_that_its_config_map_names(name: str) -> None:
    objects = Subject(name).render()
    beside = "" if "SAX_CELL" in objects else Subject("control").render()
    found = cells([*objects_of(objects), *objects_of(beside)])
    assert {cell for _, cell in found} == {OTHER}
    assert {role for role, _ in found} >= {ADMIN, MODEL}


@each_case("kind", ["jobset", "leaderworkerset", "pathways", "pathways-jobset"])
def test_all_that_is_rendered_is_in_the_cell_that_its_config_map_names(kind: str) -> None:
    assert cells(list(rendered(kind=kind).objects)) == {(ADMIN, OTHER), (MODEL, OTHER)}
