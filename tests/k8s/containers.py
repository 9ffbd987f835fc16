"""Is every container safe, does it ask for what it needs, and is it given the time it takes?

Pure.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.k8s.exceptions import FOREIGN, MEMLOCK, ROOT_FOR, VARIABLES
from tests.k8s.finding import Finding, title_of
from tests.k8s.flags import check_flags, role_of
from tests.k8s.manifests import ROOT
from tests.k8s.pods import Pod, pods_of
from tests.k8s.specs import containers, pod_specs

Json = Mapping[str, Any]
_REFERENCE = re.compile(r"\$\((\w+)\)")


def check_containers(objects: Sequence[Json], around: Sequence[Json] = ()) -> Iterator[Finding]:
    """Everything about the containers of these objects."""
    for each in objects:
        for spec in pod_specs(each):
            for container in containers(spec):
                where = f"{title_of(dict(each))} {container['name']}"
                if container["name"] not in FOREIGN:
                    yield from _safe(where, container, spec)
                    yield from _probed(where, container, each["kind"] == "Job")
                    yield from _variables(where, container)
                yield from _asks(where, container, spec)
    told = pods_of(
        [*objects, *(each for each in around if each["kind"] in ("ConfigMap", "Secret"))]
    )
    yield from dict.fromkeys(finding for pod in told for finding in check_flags(pod))
    yield from dict.fromkeys(finding for pod in told for finding in _in_time(pod))


def _safe(where: str, container: Json, pod: Json) -> Iterator[Finding]:
    own, shared = container.get("securityContext", {}), pod.get("securityContext", {})
    on_tpu = ROOT_FOR in container.get("resources", {}).get("limits", {})
    capabilities = own.get("capabilities", {})
    if not (own.get("runAsNonRoot", shared.get("runAsNonRoot")) or on_tpu):
        yield Finding(where, "it may run as root, and needs no device for that")
    wanted = (
        ("allowPrivilegeEscalation is not false", own.get("allowPrivilegeEscalation") is False),
        ("readOnlyRootFilesystem is not true", own.get("readOnlyRootFilesystem") is True),
        ("it is privileged", not own.get("privileged")),
        ("it does not drop ALL capabilities", capabilities.get("drop") == ["ALL"]),
        ("seccompProfile is not RuntimeDefault", "seccompProfile" in {**shared, **own}),
        ("enableServiceLinks is not false", pod.get("enableServiceLinks") is False),
    )
    yield from (Finding(where, text) for text, good in wanted if not good)
    for name in capabilities.get("add", ()):
        if not (on_tpu and name == MEMLOCK):
            yield Finding(where, f"it adds the capability {name}")


def _probed(where: str, container: Json, ends: bool) -> Iterator[Finding]:
    """A pod that ends by itself needs no probes."""
    for name in ("readinessProbe", "livenessProbe"):
        if name not in container and not ends:
            yield Finding(where, f"it has no {name}")


def _asks(where: str, container: Json, pod: Json) -> Iterator[Finding]:
    resources = container.get("resources", {})
    asked = {**resources.get("limits", {}), **resources.get("requests", {})}
    # A TPU host is the pod's own, whatever its containers ask for besides.
    is_alone = any(
        ROOT_FOR in each.get("resources", {}).get("limits", {}) for each in containers(pod)
    )
    for name in ("cpu", "memory"):
        if name not in asked and not (container["name"] in FOREIGN and is_alone):
            yield Finding(where, f"it requests no {name}")


def _variables(where: str, container: Json) -> Iterator[Finding]:
    env = container.get("env", ())
    used = {name for each in env for name in _REFERENCE.findall(each.get("value") or "")}
    for each in env:
        name = each["name"]
        if name not in used | _documented() | set(VARIABLES):
            yield Finding(where, f"the variable {name} is documented nowhere")
    names = [each["name"] for each in env]
    for name in sorted({each for each in names if names.count(each) > 1}):
        yield Finding(where, f"the variable {name} is there twice")


@functools.cache
def _documented() -> frozenset[str]:
    """Words in capitals in the documents, and in what reads the variables."""
    readers = ("model_server/multihost/membership.py", "sax/container.py")
    paths = [*(ROOT / "docs").rglob("*.md"), *(ROOT / each for each in readers)]
    text = "".join(path.read_text() for path in paths if path.exists())
    return frozenset(re.findall(r"\b[A-Z][A-Z_]+\b", text))


def _in_time(pod: Pod) -> Iterator[Finding]:
    """Do graces and startup probes outlast what the flags allow?"""
    grace = pod.spec.get("terminationGracePeriodSeconds", 30)
    specs = {each["name"]: each for each in containers(pod.spec)}
    main = pod.spec["containers"][0]["name"]
    for container in pod.containers:
        role, args = role_of(container)
        spec, where = specs[container.name], f"{pod.owner} {container.name}"
        before = spec.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        needs = 0.0
        if role == "model_server":
            needs = _flag(args, "--drain_seconds", 20)
            yield from _starts(where, spec.get("startupProbe", {}), args)
        elif role == "http_gateway" and container.name == main:
            needs = _flag(args, "--request_timeout_s", 600) + 5
        if needs and grace <= before + needs:
            text = f"terminationGracePeriodSeconds {grace} is not above {before + needs:g}"
            yield Finding(where, text)


def _starts(where: str, probe: Json, args: Sequence[str]) -> Iterator[Finding]:
    patience = probe.get("periodSeconds", 10) * probe.get("failureThreshold", 3)
    wait = _flag(args, "--bring_up_seconds", 600)
    if patience <= wait:
        yield Finding(where, f"startupProbe gives up after {patience} s, hosts wait for {wait:g} s")


def _flag(args: Sequence[str], name: str, default: float) -> float:
    given = [word.partition("=")[2] for word in args if word.startswith(f"{name}=")]
    return float(given[-1]) if given else default
