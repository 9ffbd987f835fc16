"""The groups of compressed-tensors' configuration: which modules are quantised how.

`config_groups` maps a group to its targets, which are names of modules, regular expressions behind
"re:" or names of classes, and to the arguments of its weights; a name wins over an expression, and
both over a class. The classes of a checkpoint are not known here: all of its quantised weights are
of any class that is named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sax.errors import CheckpointError

_REGEX = "re:"
_MOST_GROUPS = 10_000


@dataclass(frozen=True, slots=True)
class WeightScheme:
    """Quantisation of the weights of a group."""

    bits: int | None = None
    symmetric: bool = True
    group_size: int | None = None
    tile: tuple[int, int] | None = None  # rows and columns of a square block


@dataclass(frozen=True, slots=True)
class SchemeGroups:
    """Schemes by target."""

    by_name: Mapping[str, WeightScheme]
    by_regex: tuple[tuple[re.Pattern[str], WeightScheme], ...]

    def of(self, module: str) -> WeightScheme | None:
        """Return the scheme of a module; None if the configuration does not say one."""
        if found := self.by_name.get(module):
            return found
        for pattern, scheme in self.by_regex:
            if pattern.match(module):
                return scheme
        classes = {s for name, s in self.by_name.items() if "." not in name and name[:1].isupper()}
        return classes.pop() if len(classes) == 1 else None


def scheme_groups(config: Mapping[str, Any]) -> SchemeGroups:
    """Read config_groups. Raises CheckpointError for what is not understood."""
    groups = config.get("config_groups") or {}
    if not isinstance(groups, Mapping) or len(groups) > _MOST_GROUPS:
        raise _wrong("config_groups", groups)
    by_name: dict[str, WeightScheme] = {}
    by_regex: list[tuple[re.Pattern[str], WeightScheme]] = []
    for name, group in groups.items():
        if not isinstance(group, Mapping):
            continue  # a preset's name and its targets: shapes tell its bits
        scheme = _scheme(name, group.get("weights"))
        for target in group.get("targets") or ():
            if not isinstance(target, str):
                raise _wrong(f"{name}.targets", target)
            if target.startswith(_REGEX):
                by_regex.append((_pattern(name, target.removeprefix(_REGEX)), scheme))
            else:
                by_name.setdefault(target, scheme)
    return SchemeGroups(by_name, tuple(by_regex))


def _scheme(name: str, weights: Any) -> WeightScheme:
    if weights is None:
        return WeightScheme()
    if not isinstance(weights, Mapping):
        raise _wrong(f"{name}.weights", weights)
    if weights.get("dynamic"):
        raise _wrong(f"{name}.weights.dynamic", weights["dynamic"])
    bits, size = weights.get("num_bits"), weights.get("group_size")
    tile = _tile(weights.get("block_structure"), f"{name}.weights.block_structure")
    for key, value in (("num_bits", bits), ("group_size", size)):
        if value is not None and type(value) is not int:
            raise _wrong(f"{name}.weights.{key}", value)
    return WeightScheme(bits, weights.get("symmetric", True) is not False, size, tile)


def _tile(given: Any, key: str) -> tuple[int, int] | None:
    if given is None:
        return None
    sides = given.split("x") if isinstance(given, str) else given
    try:
        down, across = (int(side) for side in sides)
    except (TypeError, ValueError):
        raise _wrong(key, given) from None
    if min(down, across) < 1:
        raise _wrong(key, given)
    return down, across


def _pattern(name: str, text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as exc:
        raise _wrong(f"{name}.targets", f"re:{text} ({exc})") from exc


def _wrong(key: str, value: Any) -> CheckpointError:
    return CheckpointError(
        f"quantization_config has {key} = {str(value)[:200]!r}, which compressed-tensors does not "
        "write: fetch config.json again"
    )
