"""Bounds what a tokenizer's normalizers and pre-tokenizers can do to a text, from its JSON. Pure.

Normalisers that replace one letter by many multiply, and patterns may take a time that grows with
a power of the text or faster: a file of a few kilobytes can ask for gigabytes, or for hours.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from model_server.text.vocabularies.cutting import CUTTINGS
from sax.errors import CheckpointError

MOST_GROWTH = 128  # characters for each one of a text: NFKC has up to 18, and bytes up to 4
MOST_ADDED = 4096  # characters beside those

Step = Mapping[str, Any]
# Characters that a step makes of one, at most; others make one.
_GROWTH = {
    **{"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18, "Lowercase": 3, "ByteLevel": 4},
    "BertNormalizer": 12,
}
_CLASS = re.compile(r"\\[pP]\{[^}]*\}|\\.|\[(?:\\.|[^\]\\])*\]", re.DOTALL)
_NO_WIDTH = re.compile(r"[(^$]|\\[bBAzZG]")  # what may match between characters
_UNBOUNDED = re.compile(r"[*+]|\{\d+,\}|\{\d*,?\d{3,}\}")


def check_growth(steps: Step | None, what: str) -> None:
    """Raise CheckpointError for steps that can make too much of a text. what: of the tokenizer."""
    growth, added = 1, 0
    for step in _each(steps):
        by, more = _growth(step)
        growth, added = growth * by, added * by + more
        if growth > MOST_GROWTH or added > MOST_ADDED:
            raise CheckpointError(
                f"the tokenizer's {what} can make {growth} characters of one, and {added} more: at "
                f"most {MOST_GROWTH} and {MOST_ADDED} are taken"
            )


def are_known(steps: Step | None) -> bool:
    """True if no pattern of these steps can take long: each is one of a family that is known, or
    repeats one thing at most."""
    return all(pattern in _known() or _is_simple(pattern) for pattern in _patterns(steps))


def _growth(step: Step) -> tuple[int, int]:
    """Return what one character becomes at most, and how many come beside the text."""
    kind = step.get("type")
    if kind == "Replace":
        pattern, content = step.get("pattern", {}), str(step.get("content", ""))
        text = pattern.get("String")
        if text:
            return -(-len(content) // len(text)) or 1, 0
        if _needs_text(str(pattern.get("Regex", ""))):
            return len(content) or 1, 0
        return len(content) + 1, len(content)  # it may match nothing, everywhere
    if kind == "Prepend":
        return 1, len(str(step.get("prepend", "")))
    if kind == "Metaspace":
        return 1, 1
    return _GROWTH.get(str(kind), 1), 1


def _patterns(steps: Step | None) -> Iterator[str]:
    for step in _each(steps):
        pattern = step.get("pattern")
        if isinstance(pattern, dict) and isinstance(regex := pattern.get("Regex"), str):
            yield regex


def _needs_text(pattern: str) -> bool:
    """True if every match has a character, for patterns that Python's `re` reads alike."""
    if _NO_WIDTH.search(pattern):
        return False
    try:
        return re.fullmatch(pattern, "") is None
    except re.error:
        return False


def _is_simple(pattern: str) -> bool:
    plain = _CLASS.sub("x", pattern)
    return "(" not in plain and all(
        len(_UNBOUNDED.findall(branch)) <= 1 for branch in plain.split("|")
    )


@cache
def _known() -> frozenset[str]:
    return frozenset(
        pattern
        for cutting in CUTTINGS.values()
        for step in cutting.steps
        for pattern in _patterns(step)
    )


def _each(step: Step | None) -> Iterator[Step]:
    """The single steps of a normaliser or pre-tokenizer."""
    if step is None:
        return
    parts = step.get("normalizers", step.get("pretokenizers"))
    if parts is None:
        yield step
        return
    for part in parts:
        yield from _each(part)
