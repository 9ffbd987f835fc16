"""Finds parts of a JSON Schema that no JSON of finite length can keep to, because they contain
themselves. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast
from urllib.parse import unquote

_NESTED = frozenset({"object", "array"})


def endless(schema: Mapping[str, Any]) -> str | None:
    """Return the reference that the schema's JSON could never get to the end of, or None."""
    targets = {reference: _target(schema, reference) for reference in set(_references(schema))}
    ending = {reference for reference, target in targets.items() if target is None}
    while found := {
        reference
        for reference, target in targets.items()
        if reference not in ending and _ends(target, ending)
    }:
        ending |= found
    if _ends(schema, ending):
        return None
    return min(targets.keys() - ending, default="#")


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        parts = cast("dict[str, Any]", schema)
        if isinstance(reference := parts.get("$ref"), str):
            yield reference
        for part in parts.values():
            yield from _references(part)
    elif isinstance(schema, list):
        for part in cast("list[Any]", schema):
            yield from _references(part)


def _target(schema: Any, reference: str) -> Any:
    """Return what a reference within the schema points to; None: elsewhere, or nothing."""
    if not reference.startswith("#"):
        return None
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


def _ends(schema: Any, ending: set[str]) -> bool:
    """True if some JSON keeps to the schema, as far as references to `ending` ones are known to."""
    if not isinstance(schema, dict):
        return True
    parts = cast("dict[str, Any]", schema)
    if "const" in parts or "enum" in parts:
        return True
    if isinstance(reference := parts.get("$ref"), str) and reference not in ending:
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
        or ("object" in kinds and all(_ends(each, ending) for each in _required(parts)))
        or ("array" in kinds and all(_ends(each, ending) for each in _first_items(parts)))
    )


def _required(parts: dict[str, Any]) -> list[Any]:
    """Return the schemas of the properties that every object has."""
    known = parts.get("properties")
    schemas = cast("dict[str, Any]", known) if isinstance(known, dict) else {}
    others = parts.get("additionalProperties", True)
    return [schemas.get(name, others) for name in _list(parts, "required")]


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
