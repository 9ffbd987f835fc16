"""Rules for the value of an override: what JSON may stand there, in words for the refusal."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from sax.errors import InvalidRequest
from sax.format import quoted, shortened

_PYTHON = {"None": "null", "True": "true", "False": "false"}


@dataclass(frozen=True, slots=True)
class ValueRule:
    words: str  # "a whole number of 1 or more"
    fits: Callable[[Any], bool]

    def or_null(self) -> ValueRule:
        return ValueRule(f"{self.words}, or null", lambda value: value is None or self.fits(value))

    def or_list(self) -> ValueRule:
        """One, or a list of some."""
        many = list_of(self)
        return ValueRule(
            f"{self.words}, or a list of them",
            lambda value: self.fits(value) or many.fits(value),
        )


def whole(least: float = 0, most: float = math.inf) -> ValueRule:
    return ValueRule(
        f"a whole number {_range(least, most)}",
        lambda value: type(value) is int and least <= value <= most,
    )


def number(least: float = -math.inf, most: float = math.inf) -> ValueRule:
    def fits(value: Any) -> bool:
        return type(value) in (int, float) and math.isfinite(value) and least <= value <= most

    return ValueRule(f"a number {_range(least, most)}".rstrip(), fits)


def share() -> ValueRule:
    return ValueRule(
        "a number above 0 and at most 1",
        lambda value: type(value) in (int, float) and 0 < value <= 1,
    )


def list_of(rule: ValueRule) -> ValueRule:
    def fits(value: Any) -> bool:
        return isinstance(value, list) and value != [] and all(map(rule.fits, as_list(value)))

    return ValueRule(f"a list, each {rule.words}", fits)


def as_list(value: Any) -> list[Any]:
    """Return a list as it is, and anything else as the one entry of one."""
    return cast("list[Any]", value) if isinstance(value, list) else [value]


def _three_sizes(value: Any) -> bool:
    return list_of(whole(1)).fits(value) and len(value) == 3


FLAG = ValueRule("true or false", lambda value: isinstance(value, bool))
TEXT = ValueRule("a text", lambda value: isinstance(value, str))
OBJECT = ValueRule("an object", lambda value: isinstance(value, dict))
MESH = ValueRule("a list of three sizes, such as [1, 1, 4]", _three_sizes)
ANYTHING = ValueRule("any JSON", lambda value: True)


def _range(least: float, most: float) -> str:
    if least == -math.inf:
        return ""
    return f"of {least:g} or more" if most == math.inf else f"from {least:g} to {most:g}"


def read_json(key: str, text: str) -> Any:
    """Return the value. Raises InvalidRequest naming the override."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"override {quoted(key)}={shortened(text)} is not JSON: {json_remedy(text)}",
            param=f"overrides.{key}",
        ) from error


def json_remedy(text: str, example: str = '"bfloat16"') -> str:
    """Return what to write instead of a value that is not JSON."""
    if meant := _PYTHON.get(text.strip()):
        return f"write {meant}"
    return f"strings need double quotes, as in {example}; numbers, true, false and null do not"
