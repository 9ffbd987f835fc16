"""Accessors for fields of Kubernetes objects: a missing or mistyped field reads as empty. Pure.

Objects come from the API server, so reading one must never fail because a field is missing.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any, cast

Object = dict[str, Any]
_NUMBER = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:[eE]([+-]?\d{1,2})|([numkMGTPE]|[KMGTPE]i)?)")
_UNITS = {
    "": Decimal(1),
    **{unit: Decimal(10) ** (-9 + 3 * index) for index, unit in enumerate("num")},
    **{unit: Decimal(10) ** (3 + 3 * index) for index, unit in enumerate("kMGTPE")},
    **{f"{unit}i": Decimal(1024) ** (1 + index) for index, unit in enumerate("KMGTPE")},
}


def part(thing: Object, *path: str) -> Object:
    found = _at(thing, path)
    return cast("Object", found) if isinstance(found, dict) else {}


def parts(thing: Object, *path: str) -> list[Object]:
    found = _at(thing, path)
    many = cast("list[Any]", found) if isinstance(found, list) else []
    return [cast("Object", each) for each in many if isinstance(each, dict)]


def text(thing: Object, *path: str) -> str:
    """Return the string at a path; numbers are converted to text."""
    found = _at(thing, path)
    return str(found) if isinstance(found, str | int | float) else ""


def number(thing: Object, *path: str) -> int:
    found = text(thing, *path)
    return int(found) if found.lstrip("-").isdecimal() else 0


def is_set(thing: Object, *path: str) -> bool:
    return bool(_at(thing, path))


def name_of(thing: Object) -> str:
    return text(thing, "metadata", "name")


def label(thing: Object, key: str) -> str:
    return text(thing, "metadata", "labels", key)


def condition(thing: Object, kind: str) -> Object:
    found = parts(thing, "status", "conditions")
    none: Object = {}
    return next((each for each in found if text(each, "type") == kind), none)


def holds(thing: Object, kind: str) -> bool:
    return text(condition(thing, kind), "status") == "True"


def _at(thing: Any, path: tuple[str, ...]) -> Any:
    for step in path:
        if not isinstance(thing, dict):
            return None
        thing = cast("Object", thing).get(step)
    return thing


def parse_quantity(text: str) -> float | None:
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        return None
    digits, exponent, unit = found.groups()
    return float(Decimal(digits) * _UNITS[unit or ""] * Decimal(10) ** int(exponent or 0))


def template_of(thing: Object) -> Object:
    """Return the pod template, by reference; {} if there is none."""
    spec = part(thing, "spec")
    for job in parts(spec, "replicatedJobs"):
        return part(job, "template", "spec", "template")
    return part(spec, "leaderWorkerTemplate", "workerTemplate") or part(spec, "template")


def pod_of(thing: Object) -> Object:
    return part(template_of(thing), "spec") or part(thing, "spec")


def replicas_of(thing: Object) -> int:
    """Return the number of model replicas; one if the object does not say."""
    jobs = parts(thing, "spec", "replicatedJobs")
    return sum(map(_count, jobs)) if jobs else _count(part(thing, "spec"))


def _count(spec: Object) -> int:
    return number(spec, "replicas") if "replicas" in spec else 1
