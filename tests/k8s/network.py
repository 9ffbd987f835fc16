"""Who may reach whom, by the NetworkPolicies of a rendering. Pure; ingress by labels alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Caller:
    """A pod that calls: its labels, and those of its namespace where that is another one."""

    labels: Mapping[str, str] = field(default_factory=dict)
    namespace: Mapping[str, str] | None = None  # None: the same namespace


def may_reach(
    objects: Sequence[Json], caller: Caller, labels: Mapping[str, str], port: int
) -> bool:
    """Whether `caller` reaches this port of a pod with these labels."""
    policies = [
        each["spec"]
        for each in objects
        if each["kind"] == "NetworkPolicy"
        and _matches(each["spec"]["podSelector"], labels)
        and "Ingress" in each["spec"]["policyTypes"]
    ]
    rules = [rule for policy in policies for rule in policy.get("ingress", ())]
    return not policies or any(_lets_in(rule, caller, port) for rule in rules)


def _lets_in(rule: Json, caller: Caller, port: int) -> bool:
    ports = [each["port"] for each in rule.get("ports", ())]
    sources = rule.get("from", ())
    return (not ports or port in ports) and (
        not sources or any(_is_from(each, caller) for each in sources)
    )


def _is_from(source: Json, caller: Caller) -> bool:
    if "namespaceSelector" in source:
        if not _matches(source["namespaceSelector"], caller.namespace or {}):
            return False
    elif caller.namespace is not None:
        return False
    return "podSelector" not in source or _matches(source["podSelector"], caller.labels)


def _matches(selector: Json, labels: Mapping[str, str]) -> bool:
    return selector.get("matchLabels", {}).items() <= labels.items()
