"""The manifests that come with sax (the folder k8s), as objects. Reads files and nothing else.

Of kustomize only a list of resources is understood here: what the ground of the overlays is made
of. Anything more is an error, so that kustomize and `sax k8s render` never tell different things.
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
    """Admin servers, gateways, and what both need."""
    return list(objects_in(files("k8s").joinpath("control")))


def model_server_set() -> Object:
    """The JobSet of model servers."""
    return _only(_documents(files("k8s").joinpath("base", "model-server-set.yaml")))


def leader_worker_set() -> Object:
    """The LeaderWorkerSet of model servers, without its pods: they are those of the JobSet."""
    folder = files("k8s").joinpath("components", "parts", "leader-worker-set", "pod")
    return _only(_documents(folder.joinpath("leader-worker-set.yaml")))


def objects_in(folder: Traversable) -> Iterator[Object]:
    """Everything that a kustomization lists. Raises Internal if it does more than that."""
    listing = _only(_documents(folder.joinpath("kustomization.yaml")))
    if strange := set(listing) - _UNDERSTOOD:
        raise Internal(f"k8s/{folder.name}: {', '.join(sorted(strange))} is not understood here")
    for name in listing["resources"]:
        yield from _documents(folder.joinpath(name))


def _documents(file: Traversable) -> list[Object]:
    import yaml  # here: it takes long, and most commands do without

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, if it is there
    found = yaml.load_all(file.read_text(encoding="utf-8"), loader)
    # What an anchor names twice is one object: changed in one place it would change in both.
    return [json.loads(json.dumps(each)) for each in found if each is not None]


def _only(documents: list[Object]) -> Object:
    (found,) = documents
    return found
