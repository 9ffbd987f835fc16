"""Checks the workloads of sax: what creates pods and what they use, images, and pods. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from k8s.doctor.queues import QUEUE_NAME, workloads_of
from k8s.doctor.snapshot import ClusterNeeds, Snapshot, is_ours
from k8s.render.fields import (
    Object,
    condition,
    holds,
    is_set,
    label,
    name_of,
    number,
    part,
    parts,
    pod_of,
    replicas_of,
    text,
)
from sax.finding import OK, PROBLEM, WARNING, Finding, some

_IMAGES = "images"
_PLACEHOLDER = re.compile(r"PROJECT_ID|PROJECT\b|REGION\b|REPO\b|LOCATION\b|BUCKET_NAME")
_PULLS = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull")
_RENDER = "sax k8s render ... --image-registry REGION-docker.pkg.dev/PROJECT/REPO"
_PODS = "pods"
_MEANINGS = {
    1: "it failed: the last line of its log says why",
    2: "it rejected its flags or its environment: the last line of its log says which",
    70: "a step of its device hung, and its replica restarts; its log has the stacks",
    75: "its replica lost a host and restarts as a whole; the log of host 0 names the host",
    134: "it was aborted, usually by the TPU runtime; its log has the trace",
    137: "it was killed: out of memory, or it did not stop in time",
    143: "it was told to stop",
}
_Trouble = tuple[str, str, str]  # level, what, kind of remedy


def set_findings(snapshot: Snapshot, wanted: ClusterNeeds) -> Iterator[Finding]:
    where = snapshot.namespace
    for kind, look in (
        ("deployments", _deployment),
        ("jobsets", _jobset),
        ("leaderworkersets", _group_set),
        ("services", _service),
        ("persistentvolumeclaims", _claim),
    ):
        for thing in snapshot.of(kind):
            if is_ours(thing) and not _is_told_of(thing, snapshot):
                yield from look(thing, where)


def _is_told_of(thing: Object, snapshot: Snapshot) -> bool:
    """Return True for a set that its queue holds back: the check of queues says why."""
    is_queued = label(thing, QUEUE_NAME) and snapshot.knows("workloads")
    return is_set(thing, "spec", "suspend") and bool(is_queued or workloads_of(thing, snapshot))


def _deployment(thing: Object, where: str) -> Iterator[Finding]:
    name = name_of(thing)
    wanted, ready = replicas_of(thing), number(thing, "status", "readyReplicas")
    told = f"{ready} of {wanted} pods of {name} are ready"
    if ready >= wanted:
        yield Finding(OK, "deployments", told)
        return
    failure = condition(thing, "ReplicaFailure")
    if text(failure, "status") == "True":
        told += f": {text(failure, 'message')}"
    # One ready pod is enough to serve; the other is a standby.
    level = WARNING if ready else PROBLEM
    yield Finding(level, "deployments", told, f"kubectl -n {where} describe deployment {name}")


def _jobset(thing: Object, where: str) -> Iterator[Finding]:
    name = name_of(thing)
    describe = f"kubectl -n {where} describe jobset {name}"
    failed = condition(thing, "Failed")
    if text(failed, "status") == "True":
        yield Finding(
            PROBLEM,
            "jobsets",
            f"{name} has failed permanently ({text(failed, 'message') or text(failed, 'reason')}): "
            "its pods will not come back",
            f"kubectl -n {where} delete jobset {name}   and apply its manifest again",
        )
        return
    if is_set(thing, "spec", "suspend"):
        yield _suspended(thing, where)
        return
    restarts, wanted = number(thing, "status", "restarts"), replicas_of(thing)
    ready = sum(number(job, "ready") for job in parts(thing, "status", "replicatedJobsStatus"))
    if restarts:
        yield Finding(WARNING, "jobsets", f"{name} was restarted {restarts} times", describe)
    if ready >= wanted:
        yield Finding(OK, "jobsets", f"{name} has all hosts of {_counted(wanted)} ready")
    else:
        told = f"{name} has all hosts ready in {ready} of {wanted} replicas"
        yield Finding(WARNING, "jobsets", told, describe)


def _suspended(thing: Object, where: str) -> Finding:
    name = name_of(thing)
    if queue := label(thing, QUEUE_NAME):  # its workloads could not be read
        told = f"the queue {queue} of Kueue holds it, or gave it up"
        remedy = f"kubectl -n {where} get workloads"
    else:
        told = "somebody suspended it"
        remedy = f"kubectl -n {where} patch jobset {name} --type=merge -p "
        remedy += '\'{"spec":{"suspend":false}}\''
    return Finding(WARNING, "jobsets", f"{name} is suspended: {told}", remedy)


def _group_set(thing: Object, where: str) -> Iterator[Finding]:
    name, wanted = name_of(thing), replicas_of(thing)
    ready = number(thing, "status", "readyReplicas")
    told = f"{name} has all hosts ready in {ready} of {wanted} replicas"
    if ready >= wanted or holds(thing, "Available"):
        yield Finding(OK, "leaderworkersets", told)
        return
    describe = f"kubectl -n {where} describe leaderworkerset {name}"
    yield Finding(WARNING, "leaderworkersets", told, describe)


def _service(thing: Object, where: str) -> Iterator[Finding]:
    name = name_of(thing)
    if text(thing, "spec", "type") != "LoadBalancer":
        return
    given = parts(thing, "status", "loadBalancer", "ingress")
    address = next((text(each, "ip") or text(each, "hostname") for each in given), "")
    port = next((text(each, "port") for each in parts(thing, "spec", "ports")), "")
    if address:
        yield Finding(OK, "address", f"{name} answers at http://{address}:{port}")
        return
    yield Finding(
        PROBLEM,
        "address",
        f"{name} has no address yet; clouds assign one within minutes, kind and minikube do not",
        f"kubectl -n {where} describe service {name}   or meanwhile: kubectl -n {where} "
        f"port-forward service/{name} {port}",
    )


def _claim(thing: Object, where: str) -> Iterator[Finding]:
    name, phase = name_of(thing), text(thing, "status", "phase")
    if phase != "Bound":
        told = f"PersistentVolumeClaim {name} is {phase or 'unknown'}: pods that mount it wait"
        describe = f"kubectl -n {where} describe persistentvolumeclaim {name}"
        yield Finding(PROBLEM, "volumes", told, describe)


def _counted(replicas: int) -> str:
    return "its replica" if replicas == 1 else f"{replicas} replicas"


def image_findings(snapshot: Snapshot, wanted: ClusterNeeds) -> Iterator[Finding]:
    images = _images(snapshot)
    wrong = {image: why for image in images if (why := _wrong(image, snapshot.is_on_gke))}
    for image, why in sorted(wrong.items()):
        yield Finding(PROBLEM, _IMAGES, f"{image} in {some(images[image])}: {why}", _RENDER)
    pulls = _pulls(snapshot)
    for (image, reason), pods in sorted(pulls.items()):
        message = _message(pods[0])
        yield Finding(
            PROBLEM,
            _IMAGES,
            f"{some([name_of(pod) for pod in pods])}: {reason} for {image}: {message}",
            _remedy(message, image, name_of(pods[0]), snapshot.namespace),
        )
    if images and not wrong and not pulls:
        yield Finding(OK, _IMAGES, f"{some(sorted(images))}")


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


def pod_findings(snapshot: Snapshot, wanted: ClusterNeeds) -> Iterator[Finding]:
    if not snapshot.knows("pods"):
        return
    by_trouble: dict[_Trouble, list[str]] = defaultdict(list)
    for pod in snapshot.our_pods:
        for trouble in _pod_troubles(pod):
            by_trouble[trouble].append(name_of(pod))
    for (level, what, remedy), names in sorted(by_trouble.items()):
        command = f"kubectl -n {snapshot.namespace} {remedy.format(pod=names[0])}"
        yield Finding(level, _PODS, f"{some(names)}: {what}", command)
    if not by_trouble:
        yield Finding(OK, _PODS, f"{len(snapshot.our_pods)} pods, all ready")


def _pod_troubles(pod: Object) -> Iterator[_Trouble]:
    phase = text(pod, "status", "phase")
    placed = condition(pod, "PodScheduled")
    if phase == "Pending" and text(placed, "status") == "False":
        waits = text(placed, "reason") == "SchedulingGated"  # in a queue, on purpose
        level, what = (WARNING, "held back by a queue") if waits else (PROBLEM, "no node")
        yield level, f"{what}: {text(placed, 'message')}", "describe pod {pod}"
        return
    statuses = parts(pod, "status", "containerStatuses")
    stories = [story for status in statuses for story in _story(status)]
    if stories:
        yield from stories
    elif phase in ("Failed", "Unknown"):
        told = text(pod, "status", "message") or text(pod, "status", "reason") or phase
        yield PROBLEM, told, "describe pod {pod}"
    elif phase != "Succeeded" and not holds(pod, "Ready") and not _is_pulling(statuses):
        yield WARNING, "not ready yet", "logs {pod} --tail=20"


def _story(status: Object) -> Iterator[_Trouble]:
    ended = _ended(status)
    waiting = text(status, "state", "waiting", "reason")
    restarts = number(status, "restartCount")
    why = _why(ended)
    if waiting == "CrashLoopBackOff":
        yield PROBLEM, f"keeps crashing ({restarts} restarts): {why}", "logs {pod} --previous"
    elif waiting in ("CreateContainerConfigError", "CreateContainerError", "RunContainerError"):
        told = text(status, "state", "waiting", "message")
        yield PROBLEM, f"{waiting}: {told}", "describe pod {pod}"
    elif text(status, "state", "terminated", "exitCode") not in ("", "0"):
        # A replica exits with 70 or 75 to be restarted.
        lost = number(ended, "exitCode") in (70, 75, 143)
        yield WARNING if lost else PROBLEM, why, "logs {pod} --tail=50"
    elif restarts:
        yield WARNING, f"was restarted: {why}", "logs {pod} --previous --tail=50"


def _ended(status: Object) -> Object:
    now, before = part(status, "state", "terminated"), part(status, "lastState", "terminated")
    return now or before


def _why(ended: Object) -> str:
    if not ended:
        return "it is not known how it ended"
    code = number(ended, "exitCode")
    if text(ended, "reason") == "OOMKilled":
        return "it was killed: it needed more memory than its limit (exit code 137)"
    meaning = _MEANINGS.get(code, text(ended, "message") or text(ended, "reason") or "it ended")
    return f"{meaning} (exit code {code})"


def _is_pulling(statuses: list[Object]) -> bool:
    """Return True for image problems, which `images` reports."""
    reasons = {text(status, "state", "waiting", "reason") for status in statuses}
    return any("Image" in reason for reason in reasons)
