"""Structural schemas of CRDs: made strict, their defaults, and their lists that are sets or maps.

A structural schema says of every field whether it is known; a server prunes the others. Here they
are refused. `x-kubernetes-preserve-unknown-fields` lets them be, at its own level only: what is
specified below it stays strict. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.k8s.finding import Finding

Schema = Mapping[str, Any]
_FLAGS = re.compile(r"\(\?i\)")
_END = re.compile(r"(?<!\\)\$$")
_BELOW = ("items", "additionalProperties")
_OBJECT_META: dict[str, Any] = {"type": "object"}
_EMBEDDED = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": _OBJECT_META}


def strict(schema: Schema, root: bool = False) -> dict[str, Any]:
    """The same schema for jsonschema, in which unknown fields are errors."""
    made = {key: value for key, value in schema.items() if not key.startswith("x-")}
    properties = {name: strict(each) for name, each in schema.get("properties", {}).items()}
    if root or schema.get("x-kubernetes-embedded-resource"):
        # The API machinery knows these of every object, whatever the schema says.
        properties = _EMBEDDED | properties | {"metadata": _OBJECT_META}
    if properties:
        made["properties"] = properties
    for key in _BELOW:
        if isinstance(schema.get(key), Mapping):
            made[key] = strict(schema[key])
    if _is_closed(schema):
        made["additionalProperties"] = False
    if schema.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
        made["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if "pattern" in made:
        made["pattern"] = _for_python(made["pattern"])
    if schema.get("nullable") and "type" in made:
        made["type"] = [made["type"], "null"]
    made.pop("nullable", None)
    made.pop("default", None)
    return made


def _for_python(pattern: str) -> str:
    """Go lets a flag stand anywhere and ends a text at its very end; Python does so otherwise."""
    flags = "".join(_FLAGS.findall(pattern))
    return flags + _END.sub(r"\\Z", _FLAGS.sub("", pattern))


def _is_closed(schema: Schema) -> bool:
    return (
        schema.get("type") == "object"
        and "additionalProperties" not in schema
        and not schema.get("x-kubernetes-preserve-unknown-fields")
    )


def with_defaults(value: Any, schema: Schema) -> Any:
    """The value with the schema's defaults where fields are absent, as a server stores it."""
    if isinstance(value, list):
        return [with_defaults(each, schema.get("items", {})) for each in value]
    if not isinstance(value, Mapping):
        return value
    filled = {key: with_defaults(each, _below(schema, key)) for key, each in value.items()}
    for name, each in schema.get("properties", {}).items():
        if name not in filled and "default" in each:
            filled[name] = with_defaults(each["default"], each)
    return filled


def _below(schema: Schema, key: str) -> Schema:
    """The schema of a field; nothing where it is not specified."""
    found = schema.get("properties", {}).get(key) or schema.get("additionalProperties")
    return found if isinstance(found, Mapping) else {}


def nodes(value: Any, schema: Schema, path: str) -> Iterator[tuple[Any, Schema, str]]:
    """Every value that the schema specifies, with its schema and its path."""
    yield value, schema, path
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from nodes(each, _below(schema, key), f"{path}.{key}")
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from nodes(each, schema.get("items", {}), f"{path}[{index}]")


def check_lists(value: Any, schema: Schema, title: str) -> Iterator[Finding]:
    """Items that come twice in a list that is a set, or with the same keys in one that is a map."""
    for each, own, path in nodes(value, schema, ""):
        kind = own.get("x-kubernetes-list-type")
        if not isinstance(each, list) or kind not in ("set", "map"):
            continue
        keys = own.get("x-kubernetes-list-map-keys", ())
        seen: list[Any] = []
        for item in each:
            key = [item.get(name) for name in keys] if keys and isinstance(item, Mapping) else item
            if key in seen:
                yield Finding(f"{title} {path.lstrip('.')}", f"{key} is there twice")
            seen.append(key)
