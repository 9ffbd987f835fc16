"""What this admin server asks of a Kubernetes cluster, and the kinds of objects it makes there.

Objects are plain mappings, as YAML and JSON have them. Knows nothing of HTTP or of any client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from admin_server.provisioning.manifest import Body


@dataclass(frozen=True, slots=True)
class ObjectKind:
    """A kind of object that can hold the hosts of a replica."""

    group: str
    version: str
    kind: str
    plural: str

    @property
    def api_version(self) -> str:
        """As it stands in a manifest."""
        return f"{self.group}/{self.version}"

    @property
    def resource(self) -> str:
        """As kubectl and error messages write it."""
        return f"{self.plural}.{self.group}"


JOBSET = ObjectKind("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets")
LEADER_WORKER_SET = ObjectKind(
    "leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet", "leaderworkersets"
)
KINDS = (JOBSET, LEADER_WORKER_SET)


class ClusterTrouble(Exception):
    """The cluster did not answer, or refused; what was asked may or may not have been done."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class NotServed(ClusterTrouble):
    """The cluster does not have this kind of objects, or we may not see them."""


class Refused(ClusterTrouble):
    """The cluster answers, but not with what was asked for: asking at once again cannot help."""


class NameTaken(Refused):
    """An object of this name is there already."""


class Cluster(Protocol):
    """One namespace of a cluster. Every call raises ClusterTrouble."""

    async def objects(self, kind: ObjectKind, labels: Mapping[str, str]) -> Sequence[Body]:
        """All that have these labels. Raises NotServed too."""
        ...

    async def create(self, kind: ObjectKind, body: Body) -> Body:
        """As it was made. Raises NameTaken, Refused too."""
        ...

    async def delete(self, kind: ObjectKind, name: str, uid: str) -> None:
        """This very object with all that belongs to it; no error if it is gone already."""
        ...

    async def close(self) -> None:
        """Hang up."""
        ...
