"""Reads the API's description back: operations, their fields and statuses, for pages about it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Schema = Mapping[str, Any]

_KINDS = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "object": "object",
    "null": "null",
}
_MANY_OF = {
    "text": "texts",
    "whole number": "whole numbers",
    "number": "numbers",
    "object": "objects",
}
_MANY = {"string": "character", "array": "entry", "object": "field"}
_PLURALS = {"character": "characters", "entry": "entries", "field": "fields"}
_SIZES = {"string": "Length", "array": "Items", "object": "Properties"}


@dataclass(frozen=True, slots=True)
class DescribedField:
    """A field of a body, a query or a reply, in words."""

    name: str
    where: str  # body, query or path
    required: bool
    kind: str
    bounds: str
    text: str


@dataclass(frozen=True, slots=True)
class DescribedOperation:
    """One method of one path."""

    method: str
    path: str
    text: str
    fields: tuple[DescribedField, ...]
    statuses: tuple[str, ...]
    reply: str  # the name of its type, or what it is; "": no body
    error: str
    stream: str  # in what a stream comes; "": there is none

    @property
    def anchor(self) -> str:
        return f"{self.method}-{self.path}".lower().translate(_ANCHOR)


_STREAMS = {"text/event-stream": "server-sent events", "application/x-ndjson": "lines of JSON"}
_ANCHOR = {ord(letter): "-" for letter in "/_ "} | {ord(letter): None for letter in "{}"}


def operations(document: Schema) -> Iterator[DescribedOperation]:
    """Yield every operation of an OpenAPI document, in its order."""
    for path, methods in document["paths"].items():
        for method, told in methods.items():
            responses: Schema = told["responses"]
            good: Schema = responses.get("200", {})
            yield DescribedOperation(
                method=method.upper(),
                path=path,
                text=told.get("description", told["summary"]),
                fields=(*_parameters(told), *_body_fields(told)),
                statuses=tuple(sorted(responses)),
                reply=_content_kind(good),
                error=next((_content_kind(responses[s]) for s in responses if s >= "400"), ""),
                stream=next(
                    (words for kind, words in _STREAMS.items() if kind in good.get("content", {})),
                    "",
                ),
            )


def reply_types(document: Schema) -> Iterator[tuple[str, str, list[DescribedField]]]:
    """Yield every named type of a reply: its name, its text and its fields."""
    for name, schema in document["components"]["schemas"].items():
        yield name, schema.get("description", ""), list(fields_of_object(schema, "reply"))


def fields_of_object(schema: Schema, where: str) -> Iterator[DescribedField]:
    required = schema.get("required", ())
    for name, told in schema.get("properties", {}).items():
        yield DescribedField(
            name, where, name in required, kind_of(told), bounds_of(told), _text_of(told)
        )


def kind_of(schema: Schema) -> str:
    """Return the kind of a value in words."""
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2]
    if branches := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(kind for each in branches if (kind := kind_of(each))))
    if "maxLength" in schema and "type" not in schema:
        return "text"
    if "maxProperties" in schema and "type" not in schema:
        return "object"
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " or ".join(json.dumps(value) for value in values if value is not None) or "null"
    kinds: str | list[str] = schema.get("type", "any")
    if isinstance(kinds, list):
        return " or ".join(_KINDS.get(kind, kind) for kind in kinds if kind != "null")
    if kinds == "array":
        entries: list[Schema] = schema.get("prefixItems") or [schema.get("items") or {}]
        named = (_MANY_OF.get(kind := kind_of(entry), kind) for entry in entries)
        return f"list of {', '.join(named)}"
    return "" if kinds == "null" else _KINDS.get(kinds, kinds)


def bounds_of(schema: Schema) -> str:
    """Return the bounds of a value in words; "" for none."""
    branches = schema.get("anyOf", [schema])
    return "; ".join(dict.fromkeys(each for branch in branches for each in _bounds(branch)))


def _bounds(schema: Schema) -> Iterator[str]:
    least, most = schema.get("minimum"), schema.get("maximum")
    if (above := schema.get("exclusiveMinimum")) is not None:
        yield f"above {above:g}" + ("" if most is None else f", at most {_number(most)}")
    elif least is not None and most is not None:
        yield f"{_number(least)} to {_number(most)}"
    elif least is not None:
        yield f"{_number(least)} or more"
    kind = schema.get("type") or ("string" if "maxLength" in schema else "object")
    if isinstance(kind, str) and (of := _MANY.get(kind)):
        most = schema.get(f"max{_SIZES[kind]}")
        if most is not None:
            yield f"at most {most:,} {of if most == 1 else _PLURALS[of]}"
    if kind == "array":
        yield from _bounds_of_entries(schema.get("items", {}))


def _bounds_of_entries(schema: Schema) -> Iterator[str]:
    for branch in schema.get("anyOf", [schema]):
        if branch.get("type") in ("string", "integer", "number"):
            yield from (f"each {bound}" for bound in _bounds(branch))


def _number(value: float) -> str:
    return f"{int(value):,}" if float(value).is_integer() else f"{value:,}"


def _text_of(schema: Schema) -> str:
    texts = [schema.get("description", ""), *(_text_of(each) for each in schema.get("anyOf", ()))]
    return " ".join(text for text in dict.fromkeys(texts) if text)


def _parameters(told: Schema) -> Iterator[DescribedField]:
    for each in told.get("parameters", ()):
        schema = each["schema"]
        text = each.get("description", "")
        yield DescribedField(
            each["name"], each["in"], each["required"], kind_of(schema), bounds_of(schema), text
        )


def _body_fields(told: Schema) -> Iterator[DescribedField]:
    content = told.get("requestBody", {}).get("content", {})
    for each in content.values():
        yield from fields_of_object(each["schema"], "body")


def _content_kind(response: Schema) -> str:
    for media_type, each in response.get("content", {}).items():
        if media_type == "application/json":
            return kind_of(each["schema"])
        if media_type not in _STREAMS:
            return media_type
    return ""
