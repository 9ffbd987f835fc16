"""All checks of one rendering in one place, and what there is to render."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.k8s.containers import check_containers
from tests.k8s.finding import Finding
from tests.k8s.links import check_links
from tests.k8s.manifests import K8S, kustomizations, name_of, render, rendered
from tests.k8s.metrics import check_metrics
from tests.k8s.names import check_names
from tests.k8s.schemas import check_schema

# What a component is for, tried on each of these.
_GROUNDS = {
    "components/tokens": ("overlays/tutorial", "overlays/leaderworkerset", "overlays/cpu"),
    "components/host-network": ("overlays/tutorial", "overlays/leaderworkerset"),
    "components/nodes-may-call": ("control",),
    "components/memlock": ("overlays/tutorial", "overlays/leaderworkerset", "overlays/tpu-v5e"),
    "components/not-root": ("overlays/gpu",),
    "components/gateway-autoscaling": ("control",),
    "components/only-model-servers": ("overlays/tutorial",),
    "components/leader-worker-set": ("base",),
    "components/deployment": ("base",),
}


@dataclass(frozen=True, slots=True, order=True)
class Subject:
    """One thing that a user may apply: a kustomization, or a component on one."""

    ground: str
    component: str = ""

    def __str__(self) -> str:
        return f"{self.component} on {self.ground}" if self.component else self.ground

    def render(self) -> str:
        """As YAML documents. Raises CannotRender."""
        if not self.component:
            return render(K8S / self.ground)
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made).resolve()
            kustomization(folder, [self.ground], components=[self.component])
            return render(folder)


def subjects() -> list[Subject]:
    """Every kustomization, and every component on its grounds."""
    return [
        *(Subject(name_of(folder)) for folder in kustomizations()),
        *(Subject(ground, component) for component, on in _GROUNDS.items() for ground in on),
    ]


def kustomization(folder: Path, resources: Sequence[str], **more: Any) -> None:
    """Write one into `folder` that builds on ours: names are below k8s/."""
    here = os.path.relpath(K8S, folder)
    components = [f"{here}/{each}" for each in more.pop("components", ())]
    made = {"resources": [f"{here}/{each}" for each in resources], "components": components, **more}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(made))


def check(name: str, objects: Sequence[dict[str, Any]]) -> list[Finding]:
    """Everything that is found in one rendering."""
    around = _around(name, objects)
    found = [finding for each in objects for finding in check_schema(each)]
    if not any(not finding.note for finding in found):
        found += [finding for each in objects for finding in check_names(each)]
        found += check_links(objects, around)
        found += check_containers(objects, around)
        found += check_metrics(objects)
    return list(dict.fromkeys([*_twice(objects), *found]))


def _twice(objects: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    keys = [(each["apiVersion"], each["kind"], each["metadata"]["name"]) for each in objects]
    for key in sorted({each for each in keys if keys.count(each) > 1}):
        yield Finding("/".join(key), "it is there twice")


def _around(name: str, objects: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """What this is applied beside: a cell, where it has none itself."""
    has_cell = any(each["metadata"]["name"] == "sax-cell" for each in objects)
    return () if has_cell or name.startswith("examples/") else _cell()


@functools.cache
def _cell() -> tuple[dict[str, Any], ...]:
    return tuple(rendered("overlays/tutorial"))
