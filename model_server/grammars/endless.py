"""Finds parts of a JSON Schema that no JSON of finite length can keep to, because they contain
themselves. Pure; takes time in proportion to the schema, but for parts that refer to many others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, cast
from urllib.parse import unquote

_NESTED = frozenset({"object", "array"})
_NO_ANCHORS: Mapping[str, Any] = MappingProxyType({})
_Asks = Callable[[str], bool]  # whether the part that a reference names is known to end


def endless(schema: Mapping[str, Any]) -> str | None:
    """Return the reference that the schema's JSON could never get to the end of, or None."""
    parts = _ReferredParts(schema)
    if _ends(schema, parts.end):
        return None
    return min((name for name in parts.names if not parts.end(name)), default="#")


class _ReferredParts:
    """The parts of a schema that references name, and which of them end."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        anchors: dict[str, Any] = {}
        self.names = {*_references(schema, anchors)}
        found = {name: target_of(schema, name, anchors) for name in self.names}
        # Parts by their identity: one may have many names.
        self._part = {name: id(part) for name, part in found.items() if part is not None}
        self._ending: set[int] = set()
        waiting: defaultdict[int, set[int]] = defaultdict(set)  # for a part: those that need it
        parts = {id(part): part for part in found.values() if part is not None}
        todo = [*parts]
        while todo:
            if (part := todo.pop()) in self._ending:
                continue
            asked: set[int] = set()
            if _ends(parts[part], lambda name, asked=asked: self._asked(name, asked)):
                self._ending.add(part)
                todo += waiting.pop(part, ())
            else:
                for other in asked:
                    waiting[other].add(part)

    def end(self, name: str) -> bool:
        """True if the part ends; also where there is none, which the compiler tells."""
        return name not in self._part or self._part[name] in self._ending

    def _asked(self, name: str, asked: set[int]) -> bool:
        if self.end(name):
            return True
        asked.add(self._part[name])
        return False


def _references(schema: Any, anchors: dict[str, Any]) -> Iterator[str]:
    """Every reference; anchors: gets the parts that have a name of their own."""
    if isinstance(schema, dict):
        parts = cast("dict[str, Any]", schema)
        if isinstance(reference := parts.get("$ref"), str):
            yield reference
        if isinstance(anchor := parts.get("$anchor"), str):
            anchors[f"#{anchor}"] = parts
        for part in parts.values():
            yield from _references(part, anchors)
    elif isinstance(schema, list):
        for part in cast("list[Any]", schema):
            yield from _references(part, anchors)


def target_of(schema: Any, reference: str, anchors: Mapping[str, Any] = _NO_ANCHORS) -> Any:
    """Return what a reference within the schema points to; None: elsewhere, or nothing."""
    if not reference.startswith("#") or reference in anchors:
        return anchors.get(reference)
    found = schema
    for step in reference[1:].split("/")[1:]:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and name.isdigit() and int(name) < len(found):
            found = cast("list[Any]", found)[int(name)]
        elif isinstance(found, dict):
            found = cast("dict[str, Any]", found).get(name)
        else:
            return None
    return found


def _ends(schema: Any, ending: _Asks) -> bool:
    """True if some JSON keeps to the schema, as far as references are known to end."""
    if not isinstance(schema, dict):
        return True
    parts = cast("dict[str, Any]", schema)
    if "const" in parts or "enum" in parts:
        return True
    if isinstance(reference := parts.get("$ref"), str) and not ending(reference):
        return False
    if not all(_ends(each, ending) for each in _list(parts, "allOf")):
        return False
    for either in ("anyOf", "oneOf"):
        if (options := _list(parts, either)) and not any(_ends(each, ending) for each in options):
            return False
    kinds = parts.get("type", "any")
    kinds = set(cast("list[str]", kinds)) if isinstance(kinds, list) else {kinds}
    return (
        not kinds <= _NESTED
        or ("object" in kinds and _object_ends(parts, ending))
        or ("array" in kinds and all(_ends(each, ending) for each in _first_items(parts)))
    )


def _object_ends(parts: dict[str, Any], ending: _Asks) -> bool:
    known = parts.get("properties")
    schemas = cast("dict[str, Any]", known) if isinstance(known, dict) else {}
    others = parts.get("additionalProperties", True)
    required = {name for name in _list(parts, "required") if isinstance(name, str)}
    if not all(_ends(schemas.get(name, others), ending) for name in required):
        return False
    least = parts.get("minProperties", 0)
    if not isinstance(least, int) or least <= len(required) or "patternProperties" in parts:
        return True
    if others is not False and _ends(others, ending):
        return True
    possible = required | {name for name, each in schemas.items() if _ends(each, ending)}
    return least <= len(possible)


def _first_items(parts: dict[str, Any]) -> list[Any]:
    """Return the schemas of the items that every array has."""
    least = parts.get("minItems", 0)
    if not isinstance(least, int) or least < 1:
        return []
    first = _list(parts, "prefixItems")[:least]
    return first if len(first) == least else [*first, parts.get("items", True)]


def _list(parts: dict[str, Any], key: str) -> list[Any]:
    value = parts.get(key)
    return cast("list[Any]", value) if isinstance(value, list) else []
