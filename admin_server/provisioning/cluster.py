"""Interface to a Kubernetes cluster, and the kinds of objects created there.

Objects are plain mappings, as in YAML and JSON; parts of one that are missing are empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

Body = Mapping[str, Any]


def part(body: Body, name: str) -> dict[str, Any]:
    """The mapping of this name. Raises TypeError for anything else."""
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise TypeError(f"{name} is {str(value)[:40]!r}, not a mapping")
    return cast("dict[str, Any]", value)


def parts(body: Body, name: str) -> list[dict[str, Any]]:
    """The list of mappings of this name. Raises TypeError for anything else."""
    return cast("list[dict[str, Any]]", _list(body, name, dict, "mappings"))


def words(body: Body, name: str) -> list[str]:
    """The list of strings of this name. Raises TypeError for anything else."""
    return cast("list[str]", _list(body, name, str, "words"))


def _list(body: Body, name: str, kind: type, called: str) -> list[Any]:
    value = body.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(
        isinstance(each, kind) for each in cast("list[Any]", value)
    ):
        raise TypeError(f"{name} is {str(cast('Any', value))[:40]!r}, not a list of {called}")
    return cast("list[Any]", value)


def annotations_of(body: Body) -> dict[str, str]:
    return {name: str(text) for name, text in part(part(body, "metadata"), "annotations").items()}


def labels_of(body: Body) -> dict[str, str]:
    return {name: str(text) for name, text in part(part(body, "metadata"), "labels").items()}


@dataclass(frozen=True, slots=True)
class ObjectKind:
    """A kind of object that can hold the hosts of a replica."""

    group: str
    version: str
    kind: str
    plural: str

    @property
    def api_version(self) -> str:
        """As in a manifest."""
        return f"{self.group}/{self.version}"

    @property
    def resource(self) -> str:
        """As kubectl and error messages spell it."""
        return f"{self.plural}.{self.group}"


JOBSET = ObjectKind("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets")
LEADER_WORKER_SET = ObjectKind(
    "leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet", "leaderworkersets"
)
KINDS = (JOBSET, LEADER_WORKER_SET)


class ClusterTrouble(Exception):
    """The cluster did not answer, or refused; the request may or may not have taken effect."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class NotServed(ClusterTrouble):
    """The cluster lacks this kind of object, or we may not see it."""


class ClusterRefused(ClusterTrouble):
    """The cluster answered but refused: an immediate retry cannot help."""


class NameTaken(ClusterRefused):
    """An object of this name already exists."""


class Cluster(Protocol):
    """One namespace of a cluster. Every call raises ClusterTrouble."""

    async def objects(
        self, kind: ObjectKind, labels: Mapping[str, str | Sequence[str]]
    ) -> Sequence[Body]:
        """All objects with these labels, or one of several values. Also raises NotServed."""
        ...

    async def create(self, kind: ObjectKind, body: Body) -> Body:
        """Returns the object as created. Also raises NameTaken, ClusterRefused."""
        ...

    async def delete(self, kind: ObjectKind, name: str, uid: str) -> None:
        """Delete this very object and its dependents; no error if already gone."""
        ...

    async def close(self) -> None: ...
