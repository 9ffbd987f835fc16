"""A client that checks every whole reply against what the gateway says of the route."""

from __future__ import annotations

import importlib.util
import json
import re
from functools import cache
from typing import Any, cast

import httpx

from http_gateway.app import create_app
from http_gateway.cell_client import CellClient
from http_gateway.config import GatewayConfig

# Statuses of paths and methods that are not described, by generation.
ANYWHERE = {1: {400, 404, 405}, 2: {404, 405}}


@cache
def document(generation: int) -> dict[str, Any]:
    config = GatewayConfig(saxml_generation=generation)
    return create_app(cast("CellClient", None), config).openapi()


@cache
def _validator(generation: int, schema: str) -> Any:
    """Of a schema as JSON, which may name components of the document."""
    from jsonschema import Draft202012Validator

    components = {"components": document(generation)["components"]}
    return Draft202012Validator(json.loads(schema) | components)


def check(generation: int, method: str, path: str, reply: httpx.Response) -> None:
    """Fail unless the reply's status, content type and body are described."""
    whole = document(generation)
    operation = _operation(whole, method, path)
    if operation is None:
        assert reply.status_code in ANYWHERE[generation] or method in ("HEAD", "OPTIONS"), (
            method,
            path,
        )
        return
    told = operation["responses"].get(str(reply.status_code))
    assert told, f"{method} {path} answered {reply.status_code}: {reply.text[:200]}"
    content = told.get("content", {})
    kind = reply.headers.get("content-type", "").partition(";")[0]
    assert kind in content or not (kind or content), f"{method} {path}: {kind!r}, not {[*content]}"
    if kind == "application/json":
        _validator(generation, json.dumps(content[kind]["schema"])).validate(reply.json())
    if kind == "text/event-stream":
        _check_events(generation, content[kind]["itemSchema"], reply.text)
    if kind == "application/x-ndjson":
        lines = _validator(generation, json.dumps(content[kind]["itemSchema"]))
        for line in reply.text.splitlines():
            lines.validate(json.loads(line))


def _check_events(generation: int, schema: dict[str, Any], text: str) -> None:
    *last, told = schema["properties"]["data"]["anyOf"]
    validator = _validator(generation, json.dumps(told["contentSchema"]))
    for data in re.findall(r"^data: (.*)$", text, re.MULTILINE):
        if data not in [each["const"] for each in last]:
            validator.validate(json.loads(data))


def _operation(whole: dict[str, Any], method: str, path: str) -> dict[str, Any] | None:
    for template, methods in whole["paths"].items():
        escaped = re.escape(template).replace(r"\{name\}", ".+")  # a full name holds slashes
        pattern = re.sub(r"\\{\w+\\}", "[^/]+", escaped)
        if re.fullmatch(pattern, path) and method.lower() in methods:
            return methods[method.lower()]
    return None


class CheckingClient(httpx.AsyncClient):
    """Checks what `get`, `post` and `request` return; streams are the caller's to read.

    Where there is no jsonschema, it does not: `make test-all` has it.
    """

    def __init__(self, generation: int, **settings: Any) -> None:
        super().__init__(**settings)
        self._generation = generation

    async def request(self, method: str, url: Any, **settings: Any) -> httpx.Response:  # pyright: ignore[reportIncompatibleMethodOverride]
        reply = await super().request(method, url, **settings)
        if importlib.util.find_spec("jsonschema"):
            check(self._generation, method, reply.request.url.path, reply)
        return reply
