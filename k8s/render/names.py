"""Checks names of Kubernetes objects, including the suffixes that controllers append. Pure.

Rejects a bad name early: a cluster would refuse it or, worse, accept it and never create pods.
"""

from __future__ import annotations

import re

from sax.errors import InvalidName

LONGEST = 63  # a DNS label, and the value of a label
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SERVICE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_SUFFIX = 6  # -x7k2p, random suffix of a Job's pods
_REVISION = 11  # -5d4f8c7b9d, a StatefulSet's revision in a label of its pods


def check_label(text: str, what: str, param: str | None = None) -> str:
    """Return a DNS label unchanged. Raises InvalidName."""
    if len(text) <= LONGEST and _LABEL.fullmatch(text):
        return text
    raise InvalidName(
        f"{what} {_shown(text)}: use 1 to {LONGEST} lower-case letters, digits and '-', "
        "starting and ending with a letter or digit",
        param=param,
    )


def check_service(text: str, what: str, param: str | None = None) -> str:
    """Return a Service name unchanged: it must start with a letter. Raises InvalidName."""
    check_label(text, what, param)
    if _SERVICE.fullmatch(text):
        return text
    raise InvalidName(
        f"{what} {_shown(text)} becomes the name of a Service, so it must begin with a letter",
        param=param,
    )


def check_jobset(
    name: str,
    job: str,
    *,
    replicas: int,
    pods: int,
    has_coordinator: bool = False,
    param: str | None = None,
) -> None:
    """Check every name that a JobSet's controller derives from these. Raises InvalidName.

    job: name of its replicatedJob; replicas: replicas of that job; pods: pods of each replica.
    """
    check_service(name, "JobSet", param)
    check_label(job, "replicatedJob")
    pod = f"{name}-{job}-{replicas - 1}-{pods - 1}"
    _check_length(name, len(pod) + _SUFFIX, f"its pods {pod}-xxxxx", 1, param)
    if has_coordinator:  # every pod then has a label with its name
        coordinator = f"{name}-{job}-0-0.{name}"
        _check_length(name, len(coordinator), f"its coordinator {coordinator}", 2, param)


def check_leader_worker_set(name: str, *, replicas: int, param: str | None = None) -> None:
    """Check every name that a LeaderWorkerSet's controller derives. Raises InvalidName."""
    check_service(name, "LeaderWorkerSet", param)
    workers = f"{name}-{replicas - 1}"  # one StatefulSet per group
    _check_length(
        name, len(workers) + _REVISION, f"the label of its pods {workers}-xxxxxxxxxx", 1, param
    )


def slug(text: str, longest: int = LONGEST) -> str:
    """Make a DNS label from any text; "" if no character can be kept."""
    kept = re.sub(r"[^a-z0-9]+", "-", text.lower())
    return kept.strip("-")[:longest].strip("-")


def _check_length(name: str, length: int, made: str, times: int, param: str | None) -> None:
    """Reject a name whose expansion is too long; it occurs `times` times in the expansion."""
    if length <= LONGEST:
        return
    over = -(-(length - LONGEST) // times)
    raise InvalidName(
        f"the name {_shown(name)} is too long: {made} would have {length} characters, and "
        f"{LONGEST} are allowed; make it {over} shorter ({max(len(name) - over, 0)} at most)",
        param=param,
    )


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 80 else f"{text[:40]!r}... ({len(text)} characters)"
