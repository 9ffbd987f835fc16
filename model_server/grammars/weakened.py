"""Takes out of a JSON Schema what no grammar can hold; answers are checked for that. Pure.

What is left allows every answer that the schema allows, and is as strict as it can be: `contains`
leaves that there is an item, a pattern what it says without looking ahead. Some keywords need not
be taken out, as others say the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from model_server.grammars.endless import target_of

Schema = dict[str, Any]

_KINDS = ("null", "boolean", "object", "array", "number", "string")
# Nothing is lost with them: they never say anything by themselves.
_SILENT: dict[str, tuple[object, ...]] = {
    "uniqueItems": (False,),
    "propertyNames": (True, {}),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
    "not": (False,),
    "minProperties": (0,),
}
# What a grammar cannot hold, if nothing below can say it otherwise.
_CHECKED = (
    *("uniqueItems", "propertyNames", "not", "contains", "minContains", "maxContains"),
    *("dependentRequired", "dependentSchemas", "dependencies", "if", "then", "else"),
    *("unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef"),
)
# Keywords whose own subschemas count as evaluated, beside those of the same object.
_APPLIED = ("$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "$dynamicRef")
# Words' ends, escapes and classes; how a group that looks around begins, another one, and the end.
_AROUND = re.compile(
    r"(\\[bB])|\\.|\[(?:\\.|[^\]\\])*(?:\]|\Z)|(\(\?(?:[=!]|<[=!]))|(\()|(\))", re.DOTALL
)
_COUNTS = tuple(
    f"{side}{what}"
    for side in ("min", "max")
    for what in ("Properties", "Items", "Length", "Contains")
)
_REPEATS = frozenset("*+?{")
_BACK = re.compile(r"(?:[^\\]|^)(?:\\\\)*\\[1-9k]")


class Weakening:
    """Weakens one schema with all its parts."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.dropped: set[str] = set()  # keywords that the answer must be checked by
        self._root = root

    def weaken(self, parts: Schema) -> Schema | bool:
        """Change one part, whose own parts are converted already; False: it allows nothing."""
        for key in _COUNTS:
            if isinstance(count := parts.get(key), float) and count.is_integer():
                parts[key] = int(count)
        for key, values in _SILENT.items():
            if key in parts and any(_same(parts[key], each) for each in values):
                del parts[key]
        if _never(parts.get("not")):
            return False
        _refer(parts)
        _evaluate(parts)
        self._without_kinds(parts)
        self._name(parts)
        self._count(parts)
        self._contain(parts)
        self._match(parts)
        if "if" not in parts or not {"then", "else"} & parts.keys():
            for key in ("if", "then", "else"):
                parts.pop(key, None)
        for key in _CHECKED:
            if key in parts:
                self._drop(parts, key)
        return parts

    def _drop(self, parts: Schema, key: str) -> None:
        del parts[key]
        self.dropped.add(key)

    def _without_kinds(self, parts: Schema) -> None:
        """Say `not` of whole types by the types that are left."""
        denied = _denied(parts.get("not"))
        if not denied:
            return
        given = parts.get("type", [*_KINDS])
        kinds = cast("list[str]", given) if isinstance(given, list) else [str(given)]
        if left := [kind for kind in kinds if kind not in denied]:
            parts["type"] = left
            del parts["not"]

    def _name(self, parts: Schema) -> None:
        """Say in other words which names properties may have."""
        names = parts.get("propertyNames")
        if isinstance(names, dict) and "$ref" in names:
            names = target_of(self._root, str(cast("Schema", names)["$ref"]))
        if not isinstance(names, dict) or "patternProperties" in parts:
            return
        given = cast("Schema", names)
        allowed = [given["const"]] if "const" in given else given.get("enum")
        others = parts.get("additionalProperties", True)
        known = cast("Schema", parts.get("properties", {}))
        said = "const" if "const" in given else "enum"
        extra = given.keys() - {said, "type", "title", "description"}
        if isinstance(allowed, list):
            every = [name for name in cast("list[Any]", allowed) if isinstance(name, str)]
            parts["properties"] = {name: known.get(name, others) for name in every}
        elif pattern := _pattern_of(given):
            parts["patternProperties"] = {pattern: others}
            extra -= {"pattern", "minLength", "maxLength"}
            lengths = {"minLength", "maxLength"} & given.keys()
            if known or ("pattern" in given and lengths):
                self.dropped.add("propertyNames")
        else:
            return
        parts["additionalProperties"] = False
        if extra:
            self.dropped.add("propertyNames")
        del parts["propertyNames"]

    def _count(self, parts: Schema) -> None:
        """Say numbers of properties where the compiler cannot count them."""
        known = parts.get("properties")
        if not isinstance(known, dict) or not known:
            return
        required = [*dict.fromkeys(_texts(parts.get("required")))]
        optional = [name for name in cast("Schema", known) if name not in required]
        closed = parts.get("additionalProperties") is False and "patternProperties" not in parts
        if not optional:
            return
        least, most = parts.get("minProperties"), parts.get("maxProperties")
        if isinstance(least, int):
            del parts["minProperties"]
            if closed and least == len(required) + len(optional):
                parts["required"] = [*required, *optional]
            elif least > len(required):
                self.dropped.add("minProperties")
                if least == len(required) + 1 and closed and "anyOf" not in parts:
                    parts["anyOf"] = [{"required": [name]} for name in optional[:_MOST_WAYS]]
                    if len(optional) <= _MOST_WAYS:
                        self.dropped.discard("minProperties")
                    else:
                        del parts["anyOf"]
        if most is not None:
            del parts["maxProperties"]
            if not (closed and isinstance(most, int) and most >= len(required) + len(optional)):
                self.dropped.add("maxProperties")

    def _contain(self, parts: Schema) -> None:
        """Leave that there are as many items as must be of a kind."""
        least = parts.get("minContains", 1)
        if "contains" not in parts:
            for key in ("minContains", "maxContains"):
                parts.pop(key, None)
        elif isinstance(least, int) and parts.get("type") == "array":
            items = parts.get("minItems", 0)
            if least and isinstance(items, int):
                parts["minItems"] = max(items, least)

    def _match(self, parts: Schema) -> None:
        """Leave of patterns what they say without looking around, and none that refers back."""
        if isinstance(pattern := parts.get("pattern"), str):
            left = plain_pattern(pattern)
            if left != pattern:
                self._drop(parts, "pattern")
            if left is not None:
                parts["pattern"] = left
        by_pattern = parts.get("patternProperties")
        if isinstance(by_pattern, dict):
            self._match_names(parts, cast("Schema", by_pattern))

    def _match_names(self, parts: Schema, by_pattern: Schema) -> None:
        """Leave out what is said of names by patterns that change: others would match, too."""
        changed = {key: plain_pattern(key) for key in by_pattern}
        if all(left == key for key, left in changed.items()):
            return
        self.dropped.add("patternProperties")
        key, left = next(iter(changed.items()))
        alone = len(changed) == 1 and parts.get("additionalProperties") is False
        if alone and (not parts.get("properties") or by_pattern[key] in (True, {})):
            parts["patternProperties"] = {left or "": by_pattern[key]}
            return
        parts["patternProperties"] = {
            key: by_pattern[key] for key in changed if changed[key] == key
        }
        parts.pop("additionalProperties", None)


_MOST_WAYS = 8  # of one property among those that may be there


def plain_pattern(pattern: str) -> str | None:
    """Return a pattern without what looks ahead and behind; None for one that refers back.

    The new one matches all that the old one does.
    """
    if _BACK.search(pattern):
        return None
    made: list[str] = []
    depth, skipped, done = 0, 0, 0  # skipped: the depth of the group that is left out, from 1 on
    for found in _AROUND.finditer(pattern):
        word, looks, opens, closes = found.groups()
        depth += bool(looks or opens)
        if (looks or word) and not skipped:
            made.append(pattern[done : found.start()])
            skipped = depth if looks else 0
            done = found.end()
        elif closes:
            if depth == skipped:
                skipped, done = 0, found.end()
            depth -= 1
        # Nothing, as often as is said behind it.
        if made and done == found.end() and not skipped and pattern[done : done + 1] in _REPEATS:
            made.append("(?:)")
    return pattern if not made else "".join(made) + pattern[done:]


def _refer(parts: Schema) -> None:
    """Say references that move with the schema that includes this one, of which there is none."""
    anchor = parts.pop("$dynamicAnchor", None)
    if isinstance(anchor, str):
        parts.setdefault("$anchor", anchor)
    parts.pop("$recursiveAnchor", None)
    for key in ("$dynamicRef", "$recursiveRef"):
        if isinstance(reference := parts.get(key), str) and "$ref" not in parts:
            parts["$ref"] = reference
            del parts[key]


_UNEVALUATED = (
    ("unevaluatedProperties", "additionalProperties"),
    ("unevaluatedItems", "items"),
)


def _evaluate(parts: Schema) -> None:
    """Say of what is not evaluated that it is additional, where nothing else evaluates."""
    if parts.keys() & {*_APPLIED}:
        return
    kinds = _UNEVALUATED if "contains" not in parts else _UNEVALUATED[:1]  # it evaluates items
    for unevaluated, additional in kinds:
        if unevaluated in parts:
            value = parts.pop(unevaluated)
            if not isinstance(parts.get("items"), list) or additional != "items":
                parts.setdefault(additional, value)


def _never(denied: object) -> bool:
    """True if `not` denies everything."""
    return denied is True or denied == {}


def _denied(denied: object) -> list[str]:
    """Return the types that `not` denies, if it says nothing else."""
    if not isinstance(denied, dict) or denied.keys() != {"type"}:
        return []
    kinds = cast("Schema", denied)["type"]
    found = cast("list[Any]", kinds) if isinstance(kinds, list) else [kinds]
    if "integer" in found:
        return []
    return [str(kind) for kind in found] + ["integer"] * ("number" in found)


def _pattern_of(names: Schema) -> str | None:
    if isinstance(pattern := names.get("pattern"), str):
        return pattern
    least, most = names.get("minLength", 0), names.get("maxLength", "")
    if {"minLength", "maxLength"} & names.keys() and isinstance(least, int):
        return f"^(.|\\n){{{least},{most}}}$"
    return None


def _texts(value: object) -> list[str]:
    every = cast("list[Any]", value) if isinstance(value, list) else []
    return [each for each in every if isinstance(each, str)]


def _same(value: object, other: object) -> bool:
    return value == other and isinstance(value, bool) == isinstance(other, bool)
