"""A finding about a cluster or a machine: its level, and how to fix it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

OK, WARNING, PROBLEM = "ok", "warning", "problem"
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `sax doctor` or `sax k8s doctor`."""

    level: str  # ok, warning, problem
    about: str  # the area: nodes, identity, ...
    text: str
    remedy: str = ""  # a command if there is one, else advice

    def as_json(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in ("level", "about", "text", "remedy")}


# Findings of packages that sax does not import, by what they are about; each package adds its own
# with its commands. They need nothing but sax's base dependencies.
CHECKS: dict[str, Callable[[], Finding]] = {}


def worst(findings: Iterable[Finding]) -> str:
    levels = {finding.level for finding in findings}
    return next((level for level in (PROBLEM, WARNING) if level in levels), OK)


def some(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
