"""Checks the releases of the controllers that make and queue sets: those with known faults. Pure.

Each fault and the first release without it were read in the projects' own histories.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from k8s.doctor.finding import WARNING, Finding
from k8s.render.fields import Object, name_of, parts, text
from k8s.render.gcloud import install_command
from k8s.render.workload import pod_of

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
        install_command(project),
    )


def _has(release: Release, fault: KnownFault) -> bool:
    return fault.since <= release < fault.fixed


def told(release: Release) -> str:
    return ".".join(map(str, release))


def _release(controller: Object, project: str) -> Release | None:
    """Return the release in the image of the project's own container; None: it tells none."""
    images = [text(each, "image") for each in parts(pod_of(controller), "containers")]
    found = [_RELEASE.search(each) for each in images if f"/{project}" in each]
    first = next((each for each in found if each), None)
    return (int(first[1]), int(first[2]), int(first[3])) if first else None
