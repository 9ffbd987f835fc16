"""Generates docs/reference/api.md from the gateway's own OpenAPI document: `make docs`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from http_gateway.api_description import DescribedField, DescribedOperation, operations, reply_types
from http_gateway.app import create_app
from http_gateway.cell_client import CellClient
from http_gateway.config import GatewayConfig

_HEAD = """# HTTP API

Generated from the gateway's `/openapi.json` by `make docs`; a running gateway shows the same at
`/docs`, without loading anything from elsewhere. Every field and its bound come from the code that
checks it.

- `null` means the default of a field. What can change nothing here is taken, and what would change
  an answer and is not done is refused by name ([apis.md](apis.md) has the reasons). So a listed
  field is honoured, unless its last column says that it changes nothing: as a label or a hint, or
  because only values that change nothing are taken and others are refused, with or without
  `--lenient`.
- A field that is not listed is refused by name, inside others too. Ollama's routes, and all of a
  gateway that was started with `--lenient`, ignore it and name it in the header
  `x-sax-ignored-fields`.
- Bodies are JSON, whatever content type they come with. Lengths of texts are in bytes of UTF-8.
- `x-request-timeout` gives the time limit of a request in seconds, as the field `timeout` does.
- `x-session-id` (at most 512 bytes) keeps the requests of a conversation at one replica and version
  ([routing.md](../explanation/routing.md)).
- A reply of a model whose chat template has no tools, to a request with `tools`, has the header
  `x-sax-tools: generic`: it calls them in a form of sax's own
  ([tools.md](../how_to/tools.md#models-without-tools)).
- Errors have one shape per family: `OpenAiError`, `AnthropicError`, `OllamaError` or `SaxmlError`.
  429 and 503 come with `Retry-After`, 405 with `Allow`, 401 with `WWW-Authenticate`; all replies
  with `x-request-id`. Not listed because any path may answer so: 404 (no such path), 405 and 431
  (too large headers).
- [sampling.md](sampling.md) says what the sampling fields do, [replies.md](replies.md) what shapes
  a reply, [errors.md](errors.md) what each error means.
"""


def page() -> str:
    """Return the whole page, of a gateway of generation 2."""
    document = create_app(cast("CellClient", None), GatewayConfig()).openapi()
    return "\n".join((_HEAD, *_contents(document), *_routes(document), *_types(document)))


def _contents(document: dict[str, Any]) -> Iterator[str]:
    yield "| route | |\n| --- | --- |"
    for each in operations(document):
        name = f"[`{each.method} {each.path}`](#{_heading_anchor(each)})"
        yield f"| {name} | {_sentence(each.text)} |"
    yield ""


def _routes(document: dict[str, Any]) -> Iterator[str]:
    yield "# Routes\n"
    for each in operations(document):
        yield f"## {each.method} {each.path}\n\n{each.text}\n"
        if each.fields:
            yield "| field | | kind | bounds | |\n| --- | --- | --- | --- | --- |"
            yield from map(_row, each.fields)
            yield ""
        yield f"{_reply(each)}\n"


def _types(document: dict[str, Any]) -> Iterator[str]:
    yield "# Replies and errors\n"
    for name, text, fields in reply_types(document):
        yield f"## {name}\n"
        if text:
            yield f"{text}\n"
        yield "| field | | kind |\n| --- | --- | --- |"
        for each in fields:
            always = "always" if each.required else ""
            yield f"| `{each.name}` | {always} | {_cell(each.kind)} |"
        yield ""


def _row(field: DescribedField) -> str:
    need = "required" if field.required else ""
    where = "" if field.where == "body" else field.where
    place = ", ".join(word for word in (where, need) if word)
    cells = (f"`{field.name}`", place, field.kind, field.bounds, field.text)
    return f"| {' | '.join(map(_cell, cells))} |"


def _reply(each: DescribedOperation) -> str:
    reply = each.reply or "no body"
    if each.stream:
        reply += f", or with `stream` {each.stream}"
    errors = ", ".join(status for status in each.statuses if status >= "400")
    told = f" Errors: {errors}" if errors else ""
    shape = f" ({each.error})." if each.error else "."
    return f"Reply: {reply}.{told}{shape if errors else ''}"


def _sentence(text: str) -> str:
    return _cell(text.partition("\n")[0])


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _heading_anchor(each: DescribedOperation) -> str:
    words = f"{each.method} {each.path}".lower()
    kept = (letter for letter in words if letter.isalnum() or letter in " -_")
    return "".join(kept).replace(" ", "-")


if __name__ == "__main__":
    print(page(), end="")
