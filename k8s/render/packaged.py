"""Loads the manifests packaged with sax (the folder k8s) as objects.

Supports only the list of resources in a kustomization, which is all the base of the overlays uses.
Anything more is an error, so that kustomize and `sax k8s render` never disagree.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from sax.errors import Internal

Object = dict[str, Any]
_UNDERSTOOD = {"apiVersion", "kind", "resources"}


def control_plane() -> list[Object]:
    return list(objects_in(files("k8s").joinpath("control")))


def model_server_set() -> Object:
    return _only(_documents(files("k8s").joinpath("base", "model-server-set.yaml")))


def leader_worker_set() -> Object:
    """Load the LeaderWorkerSet of model servers, without pods: it uses those of the JobSet."""
    folder = files("k8s").joinpath("components", "parts", "leader-worker-set", "pod")
    return _only(_documents(folder.joinpath("leader-worker-set.yaml")))


def objects_in(folder: Traversable) -> Iterator[Object]:
    """Yield the objects a kustomization lists. Raises Internal if it does more than list."""
    listing = _only(_documents(folder.joinpath("kustomization.yaml")))
    if strange := set(listing) - _UNDERSTOOD:
        raise Internal(f"k8s/{folder.name}: {', '.join(sorted(strange))} is not supported here")
    for name in listing["resources"]:
        yield from _documents(folder.joinpath(name))


def _documents(file: Traversable) -> list[Object]:
    import yaml  # slow to import, and most commands do not need it

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast where available
    found = yaml.load_all(file.read_text(encoding="utf-8"), loader)
    # Copy: nodes shared through a YAML anchor are one object, so one change would show in both.
    return [json.loads(json.dumps(each)) for each in found if each is not None]


def _only(documents: list[Object]) -> Object:
    (found,) = documents
    return found
