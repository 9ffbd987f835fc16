"""/docs: the API on one page of plain HTML, with no script and nothing from elsewhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from http_gateway.openapi import JSON, operation

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


_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}
_STYLE = """
:root { color-scheme: light dark; --line: #8885; --soft: #8882; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 70rem; padding: 1rem; }
code { font: 13px/1.4 ui-monospace, monospace; }
summary { cursor: pointer; padding: .4rem; border-top: 1px solid var(--line); }
summary b { display: inline-block; min-width: 4rem; }
details[open] summary { background: var(--soft); }
details div { overflow-x: auto; padding: 0 .5rem .5rem; }
table { border-collapse: collapse; width: 100%; }
th, td { border: 1px solid var(--line); padding: .2rem .5rem; text-align: left; }
th, td { vertical-align: top; overflow-wrap: anywhere; }
"""


class DocsRoutes:
    """/docs, and /openapi.json, which it is made of."""

    def __init__(self, document: Callable[[], dict[str, Any]]) -> None:
        self._document = document

    def router(self) -> APIRouter:
        router = APIRouter(tags=["ops"])
        for path, handler, reply, media_type in (
            ("/docs", self.docs, {"type": "string"}, "text/html"),
            ("/openapi.json", self.openapi, {"type": "object"}, JSON),
        ):
            told = operation(reply, statuses=(401, 500), media_type=media_type)
            router.add_api_route(path, handler, methods=["GET"], **told)
        return router

    async def docs(self) -> Response:
        """Describe every route on one page of HTML."""
        # On a thread: to describe all routes takes some 0.1 s, once.
        made = await asyncio.to_thread(lambda: self._page)
        return Response(made, media_type="text/html", headers=_HEADERS)

    async def openapi(self) -> Response:
        """Describe every route as an OpenAPI document."""
        return Response(await asyncio.to_thread(lambda: self._json), media_type=JSON)

    @cached_property
    def _page(self) -> bytes:
        return page(self._document()).encode()

    @cached_property
    def _json(self) -> bytes:
        return msgspec.json.encode(self._document())


def page(document: dict[str, Any]) -> str:
    """Return the page of an OpenAPI document."""
    return "".join(
        (
            '<!doctype html><html lang="en"><meta charset="utf-8"><title>sax: HTTP API</title>',
            '<meta name="viewport" content="width=device-width">',
            f"<style>{_STYLE}</style><h1>HTTP API</h1>",
            '<p>The same for programs: <a href="/openapi.json">/openapi.json</a>.</p>',
            *map(_operation, operations(document)),
            "<h2>Replies and errors</h2>",
            *(_type(*each) for each in reply_types(document)),
            "</html>",
        )
    )


def _operation(each: DescribedOperation) -> str:
    statuses = ", ".join(each.statuses)
    reply = escape(each.reply or "no body") + (f", or {each.stream}" if each.stream else "")
    return (
        f'<details id="{escape(each.anchor)}"><summary><b>{each.method}</b> '
        f"<code>{escape(each.path)}</code> {escape(_first_line(each.text))}</summary>"
        f"<div><p>{escape(each.text)}</p>{_table(each.fields)}"
        f"<p>Reply: {reply}. Statuses: {statuses}; errors: {escape(each.error or 'no body')}.</p>"
        "</div></details>"
    )


def _type(name: str, text: str, fields: list[DescribedField]) -> str:
    return (
        f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>'
        f"<div><p>{escape(text)}</p>{_table(fields)}</div></details>"
    )


def _table(fields: tuple[DescribedField, ...] | list[DescribedField]) -> str:
    if not fields:
        return ""
    head = "<tr><th>field<th><th>kind<th>bounds<th>"
    return f"<table>{head}{''.join(map(_row, fields))}</table>"


def _row(field: DescribedField) -> str:
    return "<tr>" + "".join(f"<td>{cell}" for cell in _cells(field))


def _cells(field: DescribedField) -> Iterator[str]:
    yield f"<code>{escape(field.name)}</code>"
    yield f"{field.where}{', required' if field.required else ''}"
    yield from map(escape, (field.kind, field.bounds, field.text))


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
