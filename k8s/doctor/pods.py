"""Checks sax pods: which do not run, and what their exit codes mean. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from k8s.doctor.finding import OK, PROBLEM, WARNING, Finding, some
from k8s.doctor.snapshot import ClusterNeeds, Snapshot
from k8s.render.fields import Object, condition, holds, name_of, number, part, parts, text

_ABOUT = "pods"
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


def findings(snapshot: Snapshot, wanted: ClusterNeeds) -> Iterator[Finding]:
    if not snapshot.knows("pods"):
        return
    by_trouble: dict[_Trouble, list[str]] = defaultdict(list)
    for pod in snapshot.our_pods:
        for trouble in _troubles(pod):
            by_trouble[trouble].append(name_of(pod))
    for (level, what, remedy), names in sorted(by_trouble.items()):
        command = f"kubectl -n {snapshot.namespace} {remedy.format(pod=names[0])}"
        yield Finding(level, _ABOUT, f"{some(names)}: {what}", command)
    if not by_trouble:
        yield Finding(OK, _ABOUT, f"{len(snapshot.our_pods)} pods, all ready")


def _troubles(pod: Object) -> Iterator[_Trouble]:
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
