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

Objects = Sequence[dict[str, Any]]
# Components, below k8s/components, and what they are tried on.
_GROUNDS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("tokens",): (
        "overlays/tutorial",
        "overlays/leaderworkerset",
        "overlays/cpu",
        "overlays/provisioned",
    ),
    ("host-network",): ("overlays/tutorial", "overlays/leaderworkerset"),
    ("flex-start",): ("overlays/tutorial", "overlays/leaderworkerset", "overlays/tpu-v5e"),
    ("parts/nodes-may-call",): ("control",),
    ("memlock",): ("overlays/tutorial", "overlays/leaderworkerset", "overlays/tpu-v5e"),
    ("parts/not-root",): ("overlays/gpu",),
    ("gateway-autoscaling",): ("control",),
    ("parts/only-model-servers",): ("overlays/tutorial",),
    ("parts/leader-worker-set",): ("base",),
    ("parts/deployment",): ("base",),
    ("inference-gateway",): ("overlays/leaderworkerset",),
    ("tokens", "host-network", "memlock"): ("overlays/one-jobset-per-replica",),
    ("tokens", "memlock", "inference-gateway", "tokens/beside-primaries"): (
        "overlays/leaderworkerset",
    ),
}


@dataclass(frozen=True, slots=True, order=True)
class Subject:
    """One thing that a user may apply: a kustomization, or components on one, in this order."""

    ground: str
    components: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join((*self.components, "on", self.ground)) if self.components else self.ground

    def render(self) -> str:
        """As YAML documents. Raises CannotRender."""
        return _rendered(self)


@functools.cache
def _rendered(subject: Subject) -> str:
    if not subject.components:
        return render(K8S / subject.ground)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made).resolve()
        kustomization(folder, [subject.ground], components=subject.components)
        return render(folder)


def subjects() -> list[Subject]:
    """Every kustomization, and every component on what it is for."""
    return [
        *(Subject(name_of(folder)) for folder in kustomizations()),
        *(Subject(ground, components) for components, on in _GROUNDS.items() for ground in on),
    ]


def kustomization(folder: Path, resources: Sequence[str], **more: Any) -> None:
    """Write one into `folder` that builds on ours: names are below k8s/."""
    here = os.path.relpath(K8S, folder)
    components = [f"{here}/components/{each}" for each in more.pop("components", ())]
    made = {"resources": [f"{here}/{each}" for each in resources], "components": components, **more}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(made))


def check(name: str, objects: Objects) -> list[Finding]:
    """Everything that is found in one rendering."""
    found = [*_twice(objects), *(each for one in objects for each in check_schema(one))]
    if all(finding.note for finding in found):  # the others read what has the right form
        found += [finding for each in objects for finding in check_names(each)]
        found += check_metrics(objects)
        found += _resolved(objects, _around(name, objects))
    return list(dict.fromkeys(found))


def _resolved(objects: Objects, around: Objects) -> list[Finding]:
    """What needs the pods: nothing of it where a variable of theirs cannot be resolved."""
    try:
        return [*check_links(objects, around), *check_containers(objects, around)]
    except ValueError as problem:
        return [Finding("pods", str(problem))]


def _twice(objects: Objects) -> Iterator[Finding]:
    keys = [(each["apiVersion"], each["kind"], each["metadata"]["name"]) for each in objects]
    for key in sorted({each for each in keys if keys.count(each) > 1}):
        yield Finding("/".join(key), "it is there twice")


def _around(name: str, objects: Objects) -> Objects:
    """What this is applied beside: a cell, where it has none itself, or a queue."""
    names = {(each["kind"], each["metadata"]["name"]) for each in objects}
    has_cell = ("Deployment", "sax-admin-server") in names
    if name == "examples/flex-start/queued":
        return tuple(each for each in rendered("overlays/flex-start") if "Queue" in each["kind"])
    return () if has_cell or name.startswith("examples/") else _cell()


@functools.cache
def _cell() -> tuple[dict[str, Any], ...]:
    return tuple(rendered("overlays/tutorial"))
