"""/docs: the API on one page of plain HTML, with no script and nothing from elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import cached_property
from html import escape
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from http_gateway.description.reference import (
    DescribedField,
    DescribedOperation,
    operations,
    reply_types,
)
from http_gateway.openapi import JSON, operation

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
