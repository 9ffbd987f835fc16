"""Names of Kubernetes objects, and how long they may be once its controllers have added to them.

A name is refused here, before a cluster does so (or, worse, before its pods never come). Pure;
knows nothing of manifests.
"""

from __future__ import annotations

import re

from sax.errors import InvalidName

LONGEST = 63  # a DNS label, and the value of a label
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SERVICE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_SUFFIX = 6  # -x7k2p, by which the pods of a Job differ
_REVISION = 11  # -5d4f8c7b9d, of a StatefulSet, in a label of its pods


def check_label(text: str, what: str, param: str | None = None) -> str:
    """A DNS label unchanged. Raises InvalidName."""
    if len(text) <= LONGEST and _LABEL.fullmatch(text):
        return text
    raise InvalidName(
        f"{what} {_shown(text)}: write 1 to {LONGEST} lower-case letters, digits and '-', "
        "a letter or digit first and last",
        param=param,
    )


def check_service(text: str, what: str, param: str | None = None) -> str:
    """The name of what becomes a Service: a label that begins with a letter. Raises InvalidName."""
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
    """Whether everything that a JobSet's controller makes of these names is a name.

    job: of its replicatedJob; replicas: of that; pods: of each. Raises InvalidName.
    """
    check_service(name, "JobSet", param)
    check_label(job, "replicatedJob")
    pod = f"{name}-{job}-{replicas - 1}-{pods - 1}"
    _check_length(name, len(pod) + _SUFFIX, f"its pods {pod}-xxxxx", 1, param)
    if has_coordinator:  # then every pod has a label that names it
        coordinator = f"{name}-{job}-0-0.{name}"
        _check_length(name, len(coordinator), f"its coordinator {coordinator}", 2, param)


def check_leader_worker_set(name: str, *, replicas: int, param: str | None = None) -> None:
    """Whether everything that a LeaderWorkerSet's controller makes of it is a name.

    Raises InvalidName.
    """
    check_service(name, "LeaderWorkerSet", param)
    workers = f"{name}-{replicas - 1}"  # a StatefulSet of its own for each group
    _check_length(
        name, len(workers) + _REVISION, f"the label of its pods {workers}-xxxxxxxxxx", 1, param
    )


def slug(text: str, longest: int = LONGEST) -> str:
    """A DNS label made of any text; "" if nothing of it can be kept."""
    kept = re.sub(r"[^a-z0-9]+", "-", text.lower())
    return kept.strip("-")[:longest].strip("-")


def _check_length(name: str, length: int, made: str, times: int, param: str | None) -> None:
    """Refuse what is too long once expanded, where the name stands `times` times in it."""
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
