"""Ways to break a good rendering, for the tests of the checks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from tests.k8s.check import Subject, check
from tests.k8s.manifests import objects_of
from tests.k8s.specs import pod_specs

Objects = list[dict[str, Any]]
Break = Callable[[Objects], Any]
# On what, how it is broken, and the words that must be said of it.
Case = tuple[str, Break, str]
TUTORIAL, GROUPS, PATHWAYS = "overlays/tutorial", "overlays/leaderworkerset", "overlays/pathways"
GATEWAY, KUEUE, ALERTS = "overlays/inference-gateway", "overlays/flex-start", "overlays/monitoring"
SCALED = "overlays/autoscaling"


def found_in(case: Case) -> list[str]:
    """The errors that are found in a rendering once it is broken."""
    ground, broken, _ = case
    objects = objects_of(Subject(ground).render())
    broken(objects)
    return [str(each) for each in check(ground, objects) if not each.note]


def one(objects: Objects, kind: str, name: str = "") -> dict[str, Any]:
    """The first object of a kind."""
    every = (each for each in objects if each["kind"] == kind)
    return next(each for each in every if name in ("", each["metadata"]["name"]))


def pod(objects: Objects, kind: str, name: str = "") -> Any:
    """The specification of its pods."""
    return next(iter(pod_specs(one(objects, kind, name))))


def main(objects: Objects, kind: str = "JobSet", name: str = "") -> Any:
    """Their first container."""
    return pod(objects, kind, name)["containers"][0]


def admin(objects: Objects) -> Any:
    """The admin server's container."""
    return main(objects, "Deployment", "sax-admin-server")


def jobset(objects: Objects) -> Any:
    """What the JobSet says."""
    return one(objects, "JobSet")["spec"]


def rename(objects: Objects, kind: str, name: str) -> None:
    """Give the first object of a kind another name."""
    one(objects, kind)["metadata"]["name"] = name


def second_job(objects: Objects) -> None:
    """Another replicatedJob that waits for the first, in a JobSet that starts them in order."""
    first = jobset(objects)["replicatedJobs"][0]
    after = {"dependsOn": [{"name": first["name"], "status": "Ready"}]}
    jobset(objects)["replicatedJobs"].append({**copy.deepcopy(first), "name": "b", **after})
    jobset(objects)["startupPolicy"] = {"startupPolicyOrder": "InOrder"}


def put(where: Any, **values: Any) -> None:
    """Set fields."""
    where.update(values)


def env(name: str, value: str) -> dict[str, str]:
    """A variable."""
    return {"name": name, "value": value}
