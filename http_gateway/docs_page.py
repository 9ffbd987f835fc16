"""/docs: the API on one page, whose forms send requests; what it says needs no script."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from html import escape
from itertools import groupby
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from http_gateway.api_description import DescribedField, DescribedOperation, operations, reply_types
from http_gateway.openapi import JSON, operation
from sax.format import listing
from sax.look.page_file import PAGE_HEADERS, page_files

PATH = "/docs"
_PACKAGE = "http_gateway"
_FAMILIES = {
    "openai": "OpenAI",
    "anthropic": "Anthropic",
    "ollama": "Ollama",
    "llama.cpp": "llama.cpp",
    "relevance": "Relevance",
    "tokens": "Tokens",
    "saxml": "Saxml",
    "ops": "Operators",
}


def asks_for_docs(scope: Scope) -> bool:
    """True for a request for /docs or one of its files, which hold no data of a cell."""
    path: str = scope["path"]
    return scope["method"] in ("GET", "HEAD") and (path == PATH or path.startswith(f"{PATH}/"))


class DocsRoutes:
    """/docs with its files, and /openapi.json, which it is made of."""

    def __init__(self, document: Callable[[], dict[str, Any]]) -> None:
        self._document = document

    def router(self) -> APIRouter:
        router = APIRouter(tags=["ops"])
        for path, handler, reply, media_type in (
            (PATH, self.docs, {"type": "string"}, "text/html"),
            ("/openapi.json", self.openapi, {"type": "object"}, JSON),
        ):
            told = operation(reply, statuses=(401, 500), media_type=media_type)
            router.add_api_route(path, handler, methods=["GET"], **told)
        router.add_api_route(
            f"{PATH}/{{name}}", self.file, methods=["GET"], include_in_schema=False
        )
        return router

    async def docs(self) -> Response:
        """Describe every route on one page of HTML, with a form to try each."""
        # On a thread: to describe all routes takes some 0.1 s, once.
        made = await asyncio.to_thread(lambda: self._page)
        return Response(made, media_type="text/html", headers=PAGE_HEADERS)

    async def file(self, name: str, request: Request) -> Response:
        """Return one file of the page."""
        found = page_files(_PACKAGE).get(name)
        if found is None:
            raise HTTPException(404, "the page has no such file")
        return Response(**found.reply(request.headers)._asdict())

    async def openapi(self) -> Response:
        """Describe every route as an OpenAPI document."""
        return Response(await asyncio.to_thread(lambda: self._json), media_type=JSON)

    @cached_property
    def _page(self) -> bytes:
        return page(self._document()).encode()

    @cached_property
    def _json(self) -> bytes:
        return msgspec.json.encode(self._document())


_HEAD = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>sax: HTTP API</title>
<link rel="icon" href="docs/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="docs/look.css">
<link rel="stylesheet" href="docs/docs.css">
<script src="docs/theme.js"></script>
<script type="module" src="docs/docs.js"></script>
<body>
<a class="skip" href="#main">Skip to the routes</a>
<header class="bar">
  <h1>HTTP API</h1>
  <form role="search" id="search-form">
    <label class="unseen" for="search">Search the routes and fields</label>
    <input id="search" type="search" placeholder="Search routes and fields" spellcheck="false">
  </form>
  <label>Model <select id="model"></select></label>
  <label>API key
    <input id="key" type="password" autocomplete="off" placeholder="none"></label>
  <button type="button" data-theme-switch class="quiet"></button>
</header>
<p id="found" role="status" class="dim"></p>
"""
_INTRODUCTION = """
<p>Each route has a form that sends a request to this gateway and shows its answer, as it comes.
An API key stays in this tab. The same for programs is at <a href="openapi.json">/openapi.json</a>.
</p>
<noscript><p class="trouble">Without JavaScript the forms do not send; all that is described stays
readable.</p></noscript>
"""


def page(document: dict[str, Any]) -> str:
    """Return the page of an OpenAPI document."""
    known = [*_FAMILIES]
    found = sorted(operations(document), key=lambda each: known.index(each.tag))
    families = [(tag, [*each]) for tag, each in groupby(found, key=lambda each: each.tag)]
    types = [_type(*each) for each in reply_types(document)]
    return "".join(
        (
            _HEAD,
            '<nav aria-label="Families of routes"><ul>',
            *(f'<li><a href="#of-{tag}">{_FAMILIES[tag]}</a></li>' for tag, _ in families),
            '<li><a href="#types">Replies and errors</a></li></ul></nav>',
            f'<main id="main" tabindex="-1">{_INTRODUCTION}',
            *(
                _section(f"of-{tag}", _FAMILIES[tag], map(_operation, each))
                for tag, each in families
            ),
            _section("types", "Replies and errors", iter(types)),
            "</main></body></html>",
        )
    )


def _section(anchor: str, title: str, parts: Iterator[str]) -> str:
    head = f'<section aria-labelledby="{anchor}"><h2 id="{anchor}">{title}</h2>'
    return f"{head}{''.join(parts)}</section>"


def _operation(each: DescribedOperation) -> str:
    return (
        f'<details id="{escape(each.anchor)}"><summary><b>{each.method}</b> '
        f"<code>{escape(each.path)}</code> {escape(_first_sentence(each.text))}</summary>"
        f"<div><p>{escape(_sentence(each.text))}</p>"
        f"{_table(each.fields, f'Fields of {each.method} {each.path}')}"
        f"<p>{escape(_replies(each))}</p>{_form(each)}</div></details>"
    )


def _replies(each: DescribedOperation) -> str:
    """Say in sentences what comes back."""
    stream = f", or {each.stream} if a stream is asked for" if each.stream else ""
    good = f"The reply is {each.reply or 'empty'}{stream}."
    wrong = [status for status in each.statuses if status >= "400"]
    if not wrong:
        return good
    shape = f"; its body is {each.error}" if each.error else ""
    return f"{good} An error has the status {listing(wrong)}{shape}."


def _form(each: DescribedOperation) -> str:
    """Return the form that tries a route: a field for each parameter, and the body."""
    told = f"{each.method} {each.path}"
    asked = [field for field in each.fields if field.where in ("path", "query")]
    fields = "".join(_input(each, field) for field in asked)
    if each.is_form:
        fields += "".join(_input(each, field) for field in each.fields if field.required)
    elif each.example is not None:
        body = escape(json.dumps(each.example, indent=2, ensure_ascii=False))
        fields += (
            f'<label>Body<textarea class="code" name="body" rows="8">{body}</textarea></label>'
        )
    kind = ' data-form="form"' if each.is_form else ""
    return (
        f'<form class="try" aria-label="Try {escape(told)}" data-method="{each.method}" '
        f'data-path="{escape(each.path)}"{kind}>{fields}<div class="actions">'
        '<button type="submit" class="primary">Send</button>'
        '<button type="button" data-stop hidden>Stop</button>'
        '<span role="status" class="dim"></span></div>'
        f'<pre tabindex="0" role="region" aria-label="Answer of {escape(told)}" hidden></pre>'
        "</form>"
    )


def _input(each: DescribedOperation, field: DescribedField) -> str:
    is_file = each.is_form and field.name == "file"
    value = "" if field.where == "query" or is_file else (each.example or {}).get(field.name, "")
    return (
        f"<label>{escape(field.name)} <input "
        f'name="{escape(field.name)}" data-where="{field.where}" '
        f'type="{"file" if is_file else "text"}" value="{escape(str(value))}"'
        f"{' required' if field.required else ''}></label>"
    )


def _type(name: str, text: str, fields: list[DescribedField]) -> str:
    return (
        f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>'
        f"<div><p>{escape(_sentence(text))}</p>{_table(fields, f'Fields of {name}')}</div>"
        "</details>"
    )


def _table(fields: Sequence[DescribedField], title: str) -> str:
    if not fields:
        return ""
    head = "".join(
        f'<th scope="col">{name}</th>' for name in ("Field", "Place", "Kind", "Bounds", "Meaning")
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(title)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(map(_row, fields))}</tbody></table>"
        "</div>"
    )


def _row(field: DescribedField) -> str:
    cells = (
        f"{field.where}{', required' if field.required else ''}",
        field.kind,
        field.bounds,
        _sentence(field.text),
    )
    shown = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return f'<tr><th scope="row"><code>{escape(field.name)}</code></th>{shown}</tr>'


def _first_sentence(text: str) -> str:
    first, stop, _ = " ".join(text.split()).partition(". ")
    return _sentence(first + stop.strip())


def _sentence(text: str) -> str:
    """Begin with a capital and end with a full stop."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if not text or text[-1] in ".!?:" else ".")
