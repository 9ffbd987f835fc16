"""A snapshot of a cluster, and what is wanted of it. Pure values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from k8s.render.fields import Object, label, part, text
from sax.slices import TpuSlice

OUR_APPS = ("sax-admin-server", "sax-http", "sax-model-server")
USES = ("jobset", "leaderworkerset", "pathways", "inference-gateway", "kueue", "keda")


@dataclass(frozen=True, slots=True)
class Look:
    """A list to request from the API server."""

    name: str
    path: str  # API path, with {namespace} if namespaced
    resource: str  # name for `kubectl auth can-i list`, and of the definition of a custom kind
    is_custom: bool = False

    @property
    def is_namespaced(self) -> bool:
        return "{namespace}" in self.path


def _core(name: str) -> Look:
    return Look(name, f"/api/v1/namespaces/{{namespace}}/{name}", name)


def _of(name: str, group: str, version: str, *, everywhere: bool = False) -> Look:
    where = "" if everywhere else "namespaces/{namespace}/"
    return Look(name, f"/apis/{group}/{version}/{where}{name}", f"{name}.{group}")


def _custom(name: str, group: str, version: str) -> Look:
    return replace(_of(name, group, version), is_custom=True)


_HOOKS = "admissionregistration.k8s.io"
DEFINITIONS = _of("customresourcedefinitions", "apiextensions.k8s.io", "v1", everywhere=True)
CONTROLLERS = Look("controllers", "/apis/apps/v1/deployments", "deployments.apps")
NODES = Look("nodes", "/api/v1/nodes", "nodes")
LOOKS = (
    DEFINITIONS,
    _of("mutatingwebhookconfigurations", _HOOKS, "v1", everywhere=True),
    CONTROLLERS,
    NODES,
    _core("pods"),
    _core("events"),
    _core("services"),
    _core("serviceaccounts"),
    Look(
        "configmaps",
        "/api/v1/namespaces/{namespace}/configmaps?fieldSelector=metadata.name=sax-cell",
        "configmaps",
    ),
    _core("resourcequotas"),
    _core("persistentvolumeclaims"),
    _of("deployments", "apps", "v1"),
    _of("statefulsets", "apps", "v1"),
    _of("jobs", "batch", "v1"),
    _custom("jobsets", "jobset.x-k8s.io", "v1alpha2"),
    _custom("leaderworkersets", "leaderworkerset.x-k8s.io", "v1"),
    _custom("pathwaysjobs", "pathways-job.pathways.domain", "v1"),
    _custom("inferencepools", "inference.networking.k8s.io", "v1"),
    _custom("localqueues", "kueue.x-k8s.io", "v1beta2"),
    _custom("workloads", "kueue.x-k8s.io", "v1beta2"),
    _custom("scaledobjects", "keda.sh", "v1alpha1"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The lists that were read, and why others were not."""

    namespace: str
    version: str = ""  # of the API server
    seen: Mapping[str, Sequence[Object]] = field(default_factory=dict[str, Sequence[Object]])
    forbidden: frozenset[str] = frozenset()  # names of looks
    failed: Mapping[str, str] = field(default_factory=dict[str, str])  # look -> reason
    admin: Mapping[str, Any] | None = None  # /status.json of an admin server
    admin_trouble: str = ""  # why it could not be read

    def of(self, name: str) -> Sequence[Object]:
        """Return all objects of a look; none if it was not read."""
        return self.seen.get(name, ())

    def knows(self, name: str) -> bool:
        """Return True if the look was read, so that an empty list means there are none."""
        return name in self.seen

    def lacks(self, look: Look) -> bool:
        """Return True if it is a custom kind that is known not to be installed."""
        if not look.is_custom or not self.knows(DEFINITIONS.name):
            return False
        names = [text(each, "metadata", "name") for each in self.of(DEFINITIONS.name)]
        return look.resource not in names

    @property
    def our_pods(self) -> list[Object]:
        return [
            pod
            for pod in self.of("pods")
            if is_ours(pod) and not part(pod, "metadata").get("deletionTimestamp")
        ]

    @property
    def is_on_gke(self) -> bool:
        gke = "-gke." in self.version
        return gke or any(label(node, "cloud.google.com/gke-nodepool") for node in self.of("nodes"))

    @property
    def is_deployed(self) -> bool:
        kinds = ("deployments", "jobsets", "leaderworkersets", "pathwaysjobs", "pods")
        return any(is_ours(thing) for kind in kinds for thing in self.of(kind))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNeeds:
    """Features the cluster should support."""

    there: TpuSlice | None = None  # None: what the deployed pods ask for
    flex_start: bool = False  # on nodes of flex-start
    replicas: int = 1
    uses: tuple[str, ...] = ()  # in addition to what is in use


def is_ours(thing: Object) -> bool:
    return label(thing, "app.kubernetes.io/part-of") == "sax" or label(thing, "app") in OUR_APPS
