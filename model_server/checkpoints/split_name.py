"""Names of the files that one GGUF checkpoint is split into: NAME-00001-of-00003.gguf."""

from __future__ import annotations

import re

_PART = re.compile(r"(?P<whole>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_MOST_PARTS = 10_000


def part_names(name: str) -> list[str]:
    """Return the names of all parts, in order, if this is one of several; else nothing."""
    match = _PART.fullmatch(name)
    if match is None:
        return []
    number, count = int(match["number"]), int(match["count"])
    if not 1 <= number <= count <= _MOST_PARTS or count == 1:
        return []
    return [f"{match['whole']}-{part:05}-of-{count:05}.gguf" for part in range(1, count + 1)]


def whole_name(name: str) -> str:
    """Return the name without the number of a part."""
    match = _PART.fullmatch(name)
    return f"{match['whole']}.gguf" if match else name
