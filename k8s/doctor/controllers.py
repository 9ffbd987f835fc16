"""Checks the custom kinds that the manifests use: definitions, controllers, webhooks. Pure.

Without its controller a kind is accepted but never becomes a pod; without its webhooks the replicas
of a JobSet share node pools.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from k8s.doctor.queues import QUEUE_NAME
from k8s.doctor.snapshot import ClusterNeeds, Snapshot, is_ours
from k8s.render.fields import Object, is_set, label, name_of, number, part, parts, pod_of, text
from k8s.render.gcloud import install_command
from sax.finding import OK, PROBLEM, WARNING, Finding

# Checks the releases of the controllers that make and queue sets: those with known faults. Pure.
#
# Each fault and the first release without it were read in the projects' own histories.

_RELEASE = re.compile(r":v?(\d+)\.(\d+)\.(\d+)")  # in an image; builds of clouds add to it
Release = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class KnownFault:
    """A fault of the releases from `since` up to, and without, `fixed`."""

    fixed: Release
    text: str
    since: Release = (0, 0, 0)


_PROJECTS = {
    "jobset-controller-manager": "jobset",
    "lws-controller-manager": "lws",
    "kueue-controller-manager": "kueue",
    "keda-operator": "keda",
    "pathways-job-controller-manager": "pathwaysjob",
}
_GATED = (
    "pods of a LeaderWorkerSet from before an upgrade stay gated when they are recreated "
    "(kubernetes-sigs/kueue#13968)"
)
FAULTS = {
    "jobset": (
        KnownFault(
            (0, 10, 0),
            "hosts of a restarted replica may be sent to the node pool of its former first host "
            "(kubernetes-sigs/jobset#1021)",
        ),
        KnownFault(
            (0, 11, 0),
            "hosts get an empty node selector once the first one's node is gone "
            "(kubernetes-sigs/jobset#1088)",
        ),
    ),
    "lws": (
        KnownFault(
            (0, 4, 1),
            "a restart of the controller during a rollout updates all groups at once "
            "(kubernetes-sigs/lws#225)",
        ),
        KnownFault(
            (0, 5, 0), "an update ends the leader of a group twice (kubernetes-sigs/lws#291)"
        ),
    ),
    "kueue": (
        KnownFault((0, 15, 0), "it lacks the kinds at v1beta2 that the manifests use"),
        KnownFault((0, 18, 6), _GATED, since=(0, 18, 0)),
        KnownFault((0, 19, 2), _GATED, since=(0, 19, 0)),
    ),
    "keda": (
        KnownFault(
            (2, 17, 0),
            "fallback.behavior is not known, so all replicas but one go while Prometheus is away "
            "(kedacore/keda#6464)",
        ),
    ),
    "pathwaysjob": (KnownFault((0, 1, 4), "the fields of the manifests were not looked for"),),
}


def outdated(about: str, controller: Object) -> Iterator[Finding]:
    """Yield what is known to be wrong with a controller's release; nothing for unknown ones."""
    project = _PROJECTS.get(name_of(controller), "")
    release = _release(controller, project)
    faults = [each for each in FAULTS.get(project, ()) if release and _has(release, each)]
    if release is None or not faults:
        return
    yield Finding(
        WARNING,
        about,
        f"{project} is of release {told(release)}, where {'; '.join(each.text for each in faults)}"
        f": use {told(max(each.fixed for each in faults))} or the latest",
        next(each.install for each in ADDITIONS.values() if each.controller == name_of(controller)),
    )


def _has(release: Release, fault: KnownFault) -> bool:
    return fault.since <= release < fault.fixed


def told(release: Release) -> str:
    return ".".join(map(str, release))


def _release(controller: Object, project: str) -> Release | None:
    """Return the release in the image of the project's own container; None: it tells none."""
    images = [text(each, "image") for each in parts(pod_of(controller), "containers")]
    found = [_RELEASE.search(each) for each in images if f"/{project}" in each.replace("-", "")]
    first = next((each for each in found if each), None)
    return (int(first[1]), int(first[2]), int(first[3])) if first else None


_ABOUT = "controllers"


@dataclass(frozen=True, slots=True)
class Addition:
    """A kind that is not part of Kubernetes."""

    kind: str
    definition: str
    version: str  # that our manifests use
    install: str
    controller: str = ""  # its Deployment; "": any
    webhook: str = ""  # part of its name; "": none needed
    listed: str = ""  # objects that show that it is in use; "": those of the definition

    @property
    def in_use_by(self) -> str:
        return self.listed or self.definition.partition(".")[0]


ADDITIONS = {
    "jobset": Addition(
        "JobSet",
        "jobsets.jobset.x-k8s.io",
        "v1alpha2",
        install_command("jobset"),
        "jobset-controller-manager",
        "jobset",
    ),
    "leaderworkerset": Addition(
        "LeaderWorkerSet",
        "leaderworkersets.leaderworkerset.x-k8s.io",
        "v1",
        install_command("lws"),
        "lws-controller-manager",
        "lws",
    ),
    "pathways": Addition(
        "PathwaysJob",
        "pathwaysjobs.pathways-job.pathways.domain",
        "v1",
        "kubectl apply --server-side -f https://github.com/google/pathways-job/releases/latest/"
        "download/install.yaml",
        "pathways-job-controller-manager",
    ),
    "inference-gateway": Addition(
        "InferencePool",
        "inferencepools.inference.networking.k8s.io",
        "v1",
        "kubectl apply --server-side -f https://github.com/kubernetes-sigs/"
        "gateway-api-inference-extension/releases/latest/download/manifests.yaml",
    ),
    "kueue": Addition(
        "ClusterQueue of Kueue",
        "clusterqueues.kueue.x-k8s.io",
        "v1beta2",  # from Kueue 0.15 on
        install_command("kueue"),
        "kueue-controller-manager",
        "kueue",
        listed="localqueues",  # the one kind of a queue that lives in a namespace
    ),
    "keda": Addition(
        "ScaledObject of KEDA",
        "scaledobjects.keda.sh",
        "v1alpha1",
        "helm install keda kedacore/keda --namespace keda --create-namespace",
        "keda-operator",
    ),
}

_LACKING = {  # by webhook: what is missing without it
    "jobset": "which give each replica its own node pool",
    "lws": "which give each replica its own node pool",
    "kueue": "which hold sets back until their queue admits them",
}


def findings(snapshot: Snapshot, wanted: ClusterNeeds) -> Iterator[Finding]:
    for use in _in_use(snapshot, wanted):
        addition = ADDITIONS[use]
        missing = _definition(addition, snapshot)
        if missing is not None:
            yield missing
            if missing.level == PROBLEM:
                continue
        yield from _controller(addition, snapshot)
        yield from _webhook(addition, snapshot)


def _in_use(snapshot: Snapshot, wanted: ClusterNeeds) -> list[str]:
    found = {use for use in ADDITIONS if snapshot.of(ADDITIONS[use].in_use_by)}
    sets = (*snapshot.of("jobsets"), *snapshot.of("leaderworkersets"))
    if any(is_ours(each) and label(each, QUEUE_NAME) for each in sets):
        found.add("kueue")
    # Default if nothing is deployed or asked for: the recommended setup uses JobSets.
    asked = {*found, *wanted.uses} or {"jobset"}
    # A PathwaysJob becomes a JobSet.
    return [use for use in ADDITIONS if use in asked or (use == "jobset" and "pathways" in asked)]


def _definition(addition: Addition, snapshot: Snapshot) -> Finding | None:
    if not snapshot.knows("customresourcedefinitions"):
        return None  # api_server reports lists that could not be read
    definitions = {name_of(each): each for each in snapshot.of("customresourcedefinitions")}
    found = definitions.get(addition.definition)
    if found is None:
        return Finding(PROBLEM, _ABOUT, f"{addition.kind} is not installed", addition.install)
    versions = parts(found, "spec", "versions")
    served = [text(each, "name") for each in versions if is_set(each, "served")]
    if addition.version not in served:
        return Finding(
            PROBLEM,
            _ABOUT,
            f"{addition.kind} is served as {', '.join(served) or 'nothing'}, but the manifests "
            f"use {addition.version}",
            addition.install,
        )
    return Finding(OK, _ABOUT, f"{addition.kind} is installed, served as {', '.join(served)}")


def _controller(addition: Addition, snapshot: Snapshot) -> Iterator[Finding]:
    if not addition.controller or not snapshot.knows("controllers"):
        return
    found = [each for each in snapshot.of("controllers") if name_of(each) == addition.controller]
    if not found:
        yield Finding(
            WARNING,
            _ABOUT,
            f"there is no Deployment {addition.controller}: cannot tell what handles "
            f"{addition.kind} here",
            addition.install,
        )
        return
    ready = [each for each in found if number(each, "status", "readyReplicas") > 0]
    where = text((ready or found)[0], "metadata", "namespace")
    if ready:
        yield Finding(OK, _ABOUT, f"{addition.controller} is ready in namespace {where}")
        yield from outdated(_ABOUT, ready[0])
        return
    yield Finding(
        PROBLEM,
        _ABOUT,
        f"{addition.controller} has no ready pod: nothing handles {addition.kind}",
        f"kubectl -n {where} describe deployment {addition.controller}",
    )


def _webhook(addition: Addition, snapshot: Snapshot) -> Iterator[Finding]:
    look = "mutatingwebhookconfigurations"
    if not addition.webhook or not snapshot.knows(look):
        return
    found = [each for each in snapshot.of(look) if addition.webhook in name_of(each)]
    if not found:
        yield Finding(
            PROBLEM,
            _ABOUT,
            f"{addition.kind} has no webhooks, {_LACKING[addition.webhook]}",
            addition.install,
        )
        return
    for each in found:
        if bare := [hook for hook in parts(each, "webhooks") if not _is_trusted(hook)]:
            yield Finding(
                PROBLEM,
                _ABOUT,
                f"webhook {text(bare[0], 'name')} has no certificate yet: every "
                f"{addition.kind} is rejected",
                f"kubectl rollout restart deployment {addition.controller} --namespace NAMESPACE",
            )


def _is_trusted(hook: dict[str, object]) -> bool:
    client = part(hook, "clientConfig")
    return is_set(client, "caBundle") or is_set(client, "url")
