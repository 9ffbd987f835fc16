"""Rewrites a JSON Schema to one that the compiler of grammars takes, and takes rightly. Pure.

Every answer under the new schema keeps to the old one, but for the keywords that were taken out of
it (`weakened`). Where the compiler cannot say all that the old one allows, the new one allows a
little less: numbers beyond 1e18, and whole ones beyond 2^63.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, NamedTuple, cast

from model_server.grammars.weakened import Weakening

_MAPPED = frozenset({"properties", "patternProperties", "$defs", "definitions"})  # names -> schemas
# No schemas, or schemas that no grammar follows.
_VALUES = frozenset(
    {
        *("const", "enum", "default", "example", "examples"),
        *("not", "if", "then", "else", "contains", "dependentSchemas", "dependencies"),
    }
)
# Formats that the compiler knows. Others are annotations (JSON Schema 2020-12, Validation, 7.2.1).
_FORMATS = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"}
)
_FOURTH = "(?:0[48]|[2468][048]|[13579][26])"  # the years of a century but its first
_LEAP = f"(?:[0-9]{{2}}{_FOURTH}|(?:00|{_FOURTH})00)"
_DATE = (
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    f"|{_LEAP}-02-29)"
)
_TIME = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:(?:[0-5][0-9]|60)(?:\.[0-9]+)?"
    "(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_PATTERNS = {"date": f"^{_DATE}$", "date-time": f"^{_DATE}[Tt]{_TIME}$"}
_WHOLE = float(2**63 - 1024)  # the largest bound of whole numbers that float64 has
_DECIMAL = 1e18
# Between an exclusive bound and the inclusive one in its place, where the compiler takes the
# bound's own whole number for a number within.
_STEP = Decimal("1e-9")
# Towards which side they leave more room.
_BOUNDS = {"minimum": -1, "exclusiveMinimum": -1, "maximum": 1, "exclusiveMaximum": 1}
_CONTROL = re.compile(r"(?<!\\)(?:\\\\)*\\u00(?:[01]|7f)")


class CompilableSchema(NamedTuple):
    """A schema to compile."""

    schema: dict[str, Any] | bool
    dropped: frozenset[str]  # keywords that answers must be checked by


def compilable(schema: Mapping[str, Any]) -> CompilableSchema:
    """Raises RecursionError for a schema that is nested too deeply."""
    weakening = Weakening(schema)
    made = _Rewriting(weakening).part(schema)
    return CompilableSchema(made, frozenset(weakening.dropped))


class _Rewriting:
    def __init__(self, weakening: Weakening) -> None:
        self._weakening = weakening

    def part(self, schema: Mapping[str, Any]) -> dict[str, Any] | bool:
        parts = {key: self._converted(key, value) for key, value in schema.items()}
        if self._weakening.weaken(parts) is False:
            return False
        if (name := parts.get("format")) is not None and name not in _FORMATS:
            del parts["format"]
        elif name in _PATTERNS:
            parts["allOf"] = [*parts.get("allOf", ()), {"pattern": _PATTERNS[name]}]
            del parts["format"]
        _bound(parts)
        return parts

    def _converted(self, key: str, value: Any) -> Any:
        if isinstance(value, dict) and key not in _VALUES:
            if key in _MAPPED:
                given = cast("dict[str, Any]", value).items()
                return {name: self._schema(each) for name, each in given}
            return self.part(cast("dict[str, Any]", value))
        if isinstance(value, list) and key not in _VALUES:
            return [self._schema(each) for each in cast("list[Any]", value)]
        return value

    def _schema(self, value: Any) -> Any:
        return self.part(cast("dict[str, Any]", value)) if isinstance(value, dict) else value


def escapes(schema: Mapping[str, Any]) -> str:
    r"""Return the letters that may follow a backslash in JSON under a schema.

    Not u: the name of a property that is written with \u would pass as one of another name. But a
    schema that names control characters needs it.
    """
    return 'nrbtf\\"u' if _CONTROL.search(json.dumps(schema)) else 'nrbtf\\"'


def _bound(parts: dict[str, Any]) -> None:
    """Move bounds of numbers to where the compiler takes them."""
    whole = parts.get("type") == "integer"
    most = _WHOLE if whole else _DECIMAL
    bounds = {key: parts[key] for key in _BOUNDS if _is_number(parts.get(key))}
    for key, bound in bounds.items():
        if bound * _BOUNDS[key] > most:
            parts[key] = bounds[key] = int(most) * _BOUNDS[key]
    low = max((bounds[key] for key in _BOUNDS.keys() & bounds if _BOUNDS[key] < 0), default=None)
    high = min((bounds[key] for key in _BOUNDS.keys() & bounds if _BOUNDS[key] > 0), default=None)
    if whole or low is None or high is None or not 0 < high - low <= 1:
        return
    step = min(_STEP, (Decimal(str(high)) - Decimal(str(low))) / 4)
    for key, inclusive, nearer in (
        ("exclusiveMinimum", "minimum", max),
        ("exclusiveMaximum", "maximum", min),
    ):
        if key in bounds:
            moved = float(Decimal(str(bounds[key])) - _BOUNDS[key] * step)
            parts[inclusive] = nearer(moved, bounds.get(inclusive, moved))
            del parts[key]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
