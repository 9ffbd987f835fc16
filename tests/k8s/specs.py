"""Where in an object its pods are specified, by kind. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Json = Mapping[str, Any]


def pod_specs(each: Json) -> Iterator[Json]:
    """The specification of every kind of pod that an object leads to."""
    for template in pod_templates(each):
        yield template["spec"]


def pod_templates(each: Json) -> Iterator[Json]:
    """The same with its labels and annotations."""
    spec = each.get("spec") or {}
    match each["kind"]:
        case "Deployment" | "Job" | "StatefulSet" | "DaemonSet":
            yield spec["template"]
        case "JobSet":
            for job in spec["replicatedJobs"]:
                yield job["template"]["spec"]["template"]
        case "LeaderWorkerSet":
            for name in ("leaderTemplate", "workerTemplate"):
                if name in spec["leaderWorkerTemplate"]:
                    yield spec["leaderWorkerTemplate"][name]
        case "PathwaysJob":
            yield spec["controller"]["template"]


def containers(spec: Json) -> tuple[Json, ...]:
    """All containers of a pod, those that come first included."""
    return (*spec.get("initContainers", ()), *spec["containers"])
