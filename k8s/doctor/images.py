"""Checks the images of sax pods: whether their names can be pulled, and failed pulls. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from k8s.doctor.finding import OK, PROBLEM, Finding, some
from k8s.doctor.snapshot import ClusterNeeds, Snapshot, is_ours
from k8s.render.fields import Object, name_of, parts, text
from k8s.render.workload import pod_of

_ABOUT = "images"
_PLACEHOLDER = re.compile(r"PROJECT_ID|PROJECT\b|REGION\b|REPO\b|LOCATION\b|BUCKET_NAME")
_PULLS = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull")
_RENDER = "sax k8s render ... --image-registry REGION-docker.pkg.dev/PROJECT/REPO"


def findings(snapshot: Snapshot, wanted: ClusterNeeds) -> Iterator[Finding]:
    images = _images(snapshot)
    wrong = {image: why for image in images if (why := _wrong(image, snapshot.is_on_gke))}
    for image, why in sorted(wrong.items()):
        yield Finding(PROBLEM, _ABOUT, f"{image} in {some(images[image])}: {why}", _RENDER)
    pulls = _pulls(snapshot)
    for (image, reason), pods in sorted(pulls.items()):
        message = _message(pods[0])
        yield Finding(
            PROBLEM,
            _ABOUT,
            f"{some([name_of(pod) for pod in pods])}: {reason} for {image}: {message}",
            _remedy(message, image, name_of(pods[0]), snapshot.namespace),
        )
    if images and not wrong and not pulls:
        yield Finding(OK, _ABOUT, f"{some(sorted(images))}")


def _images(snapshot: Snapshot) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for kind in ("deployments", "jobsets", "leaderworkersets"):
        for thing in snapshot.of(kind):
            for container in parts(pod_of(thing), "containers") if is_ours(thing) else ():
                found[text(container, "image")].append(name_of(thing))
    return found


def _wrong(image: str, on_gke: bool) -> str:
    if found := _PLACEHOLDER.search(image):
        return f"{found[0]} was never replaced"
    host = image.partition("/")[0]
    if on_gke and ("/" not in image or not re.search(r"[.:]", host)):
        return "it names no registry, and nodes of Kubernetes Engine lack it"
    return ""


def _pulls(snapshot: Snapshot) -> dict[tuple[str, str], list[Object]]:
    found: dict[tuple[str, str], list[Object]] = defaultdict(list)
    for pod in snapshot.our_pods:
        for status in _statuses(pod):
            reason = text(status, "state", "waiting", "reason")
            if reason in _PULLS:
                found[text(status, "image"), reason].append(pod)
    return found


def _message(pod: Object) -> str:
    told = (text(status, "state", "waiting", "message") for status in _statuses(pod))
    return next(filter(None, told), "the kubelet gives no reason")


def _statuses(pod: Object) -> list[Object]:
    return [
        *parts(pod, "status", "initContainerStatuses"),
        *parts(pod, "status", "containerStatuses"),
    ]


def _remedy(message: str, image: str, pod: str, namespace: str) -> str:
    if re.search(r"403|denied|unauthorized", message, re.I):
        return (
            "gcloud projects add-iam-policy-binding PROJECT_ID --role=roles/artifactregistry.reader"
            " --member=serviceAccount:NODES_ACCOUNT   (the account that the nodes run as)"
        )
    if re.search(r"not.found|404|manifest unknown", message, re.I):
        return f"gcloud artifacts docker tags list {image.rpartition(':')[0] or image}"
    return f"kubectl -n {namespace} describe pod {pod}"
