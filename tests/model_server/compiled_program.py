"""Reading what the TPU compiler made: which arrays a program writes, and what devices exchange."""

from __future__ import annotations

import math
import re
from typing import Any

_MADE = re.compile(r"%\S+ = \(*(\w+)\[([\d,]*)\].*? ([a-z][\w-]*)\(")
_GATHERED = re.compile(r"= \(*\w+\[([\d,]*)\].*? (?:all-gather|all-to-all)(?:-start)?\(")
# A view, or bytes brought to VMEM ahead of their use, as they are.
_MOVES = {
    "parameter",
    "bitcast",
    "tuple",
    "get-tuple-element",
    "copy-start",
    "copy-done",
    "slice-start",
    "slice-done",
}


def made_as_large_as(compiled: Any, numbers: int) -> list[str]:
    """What the program computes or copies, of so many numbers at least: none is a weight's view."""
    entry = str(compiled.as_text()).split("ENTRY", 1)[1]
    lines = [line for line in entry.splitlines() if '"ConcatBitcast"' not in line]
    return [
        line.strip()[:200]
        for line in lines
        if (found := _MADE.search(line)) and found[3] not in _MOVES and _size(found[2]) >= numbers
    ]


def brought_as_large_as(compiled: Any, numbers: int) -> list[str]:
    """Whole arrays, or slices of them, that are brought to VMEM before they are asked for."""
    return [
        line.strip()[:200]
        for line in str(compiled.as_text()).splitlines()
        if (found := _MADE.search(line))
        and found[3] in ("copy-start", "slice-start")
        and _size(found[2]) >= numbers
    ]


def gathered_as_large_as(compiled: Any, numbers: int) -> list[str]:
    """What devices put together from all of them."""
    text = str(compiled.as_text())
    return [m[0][:200] for m in _GATHERED.finditer(text) if _size(m[1]) >= numbers]


def _size(dimensions: str) -> int:
    return math.prod(int(d) for d in dimensions.split(",") if d)
