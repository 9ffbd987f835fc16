"""One thing that was looked at in a cluster, how it is, and what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

OK, WARNING, PROBLEM = "ok", "warning", "problem"
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """What `sax k8s doctor` says."""

    level: str  # ok, warning, problem
    about: str  # the noun: nodes, identity, ...
    text: str
    remedy: str = ""  # a command where there is one, else what to do

    def as_json(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in ("level", "about", "text", "remedy")}


def worst(findings: Iterable[Finding]) -> str:
    """The highest level of them."""
    levels = {finding.level for finding in findings}
    return next((level for level in (PROBLEM, WARNING) if level in levels), OK)


def some(names: Sequence[str]) -> str:
    """A few of many names."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
