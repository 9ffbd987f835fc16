"""Records of answers: how a file holds them, and where two differ."""

from __future__ import annotations

import json
import os.path
from typing import Any

_SHOWN = 400  # characters of an answer that differs
_BEFORE = 100  # of them before the first place that does
_CLOSE = 1.5e-4  # of two numbers that were rounded to 4 digits
_SAME = "= "  # and the name of an earlier question with the same answer


def folded(told: dict[str, Any]) -> dict[str, Any]:
    """Return the answers by sorted names, with "= NAME" for one that is the same as an earlier."""
    first: dict[str, str] = {}
    kept: dict[str, Any] = {}
    for name, answer in sorted(told.items()):
        same = first.setdefault(json.dumps(answer, sort_keys=True), name)
        kept[name] = answer if same == name else _SAME + same
    return kept


def unfolded(kept: dict[str, Any]) -> dict[str, Any]:
    return {
        name: kept[answer.removeprefix(_SAME)] if isinstance(answer, str) else answer
        for name, answer in kept.items()
    }


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return a paragraph for each question whose answers differ, or that only one side has."""
    told: list[str] = []
    for name in sorted(before.keys() | after.keys()):
        was, now = (each.get(name, "not asked") for each in (before, after))
        if not alike(was, now):
            told.append("\n".join((name, *_shown(was, now))))
    return told


def _shown(was: Any, now: Any) -> list[str]:
    """Return both answers, cut to what is about the first place where they differ."""
    texts = [json.dumps(each, ensure_ascii=False) for each in (was, now)]
    start = max(0, len(os.path.commonprefix(texts)) - _BEFORE)
    return [
        f"  {verb} {'...' * bool(start)}{text[start : start + _SHOWN]}"
        for verb, text in zip(("was", "is "), texts, strict=True)
    ]


def alike(first: Any, second: Any) -> bool:
    """Return True if two answers are equal but for the last digit of numbers."""
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(alike(first[k], second[k]) for k in first)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(alike, first, second))
    if isinstance(first, float) and isinstance(second, float):
        return abs(first - second) < _CLOSE
    return first == second
