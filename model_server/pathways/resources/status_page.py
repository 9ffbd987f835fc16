"""The status page of a Pathways deployment: islands, clients and errors over plain HTTP.

GET  /              a page
GET  /healthz       200 once all islands are up, else 503 with what is missing
GET  /status.json   the same as data
POST /clients/SESSION/pause, /clients/SESSION/resume
"""

from __future__ import annotations

import asyncio
import html
import json
import time
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec

from model_server.pathways.resources.manager import ResourceManager

_REQUEST_S = 5.0
_MOST_HEADER = 16 << 10


class Page(NamedTuple):
    """An HTTP reply."""

    status: HTTPStatus
    kind: str
    body: str


def status(manager: ResourceManager) -> dict[str, Any]:
    """Return islands, clients by proxy server, and what happened lately, oldest first."""
    islands = manager.roster.islands()
    return {
        "islands": [msgspec.to_builtins(line) for line in islands.lines],
        "clients": {
            name: [msgspec.to_builtins(line) | {"session": str(line.session)} for line in lines]
            for name, lines in manager.clients.items()
        },
        "happenings": [{"at": each.at_s, "text": each.text} for each in manager.roster.happenings],
    }


def page(manager: ResourceManager, method: str, path: str) -> Page:
    """Answer one HTTP request."""
    parts = path.strip("/").split("/")
    if method == "POST" and len(parts) == 3 and parts[0] == "clients" and parts[1].isdigit():
        return _pause(manager, int(parts[1]), parts[2])
    if method != "GET":
        return Page(HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", "GET, or POST to pause a client\n")
    found = status(manager)
    if path == "/healthz":
        down = [line for line in found["islands"] if not line["up"]]
        text = "".join(f"island {line['island']} is down: {line['note']}\n" for line in down)
        code = HTTPStatus.SERVICE_UNAVAILABLE if down else HTTPStatus.OK
        return Page(code, "text/plain", text or "ok\n")
    if path == "/status.json":
        return Page(HTTPStatus.OK, "application/json", json.dumps(found, indent=2) + "\n")
    if path == "/":
        return Page(HTTPStatus.OK, "text/html", _html(found))
    return Page(HTTPStatus.NOT_FOUND, "text/plain", "/, /healthz and /status.json are here\n")


def _pause(manager: ResourceManager, session: int, verb: str) -> Page:
    if verb not in ("pause", "resume"):
        return Page(HTTPStatus.NOT_FOUND, "text/plain", "pause or resume a client\n")
    if not manager.pause(session, verb == "pause"):
        return Page(HTTPStatus.NOT_FOUND, "text/plain", f"no client has the session {session}\n")
    return Page(HTTPStatus.OK, "text/plain", f"{verb}d\n")


def _html(found: Mapping[str, Any]) -> str:
    clients = [
        {"proxy server": name, **line} for name, lines in found["clients"].items() for line in lines
    ]
    lately = [
        {"when": _when(each["at"]), "what": each["text"]} for each in reversed(found["happenings"])
    ]
    islands = [
        {
            "island": line["island"],
            "state": "up" if line["up"] else f"down: {line['note']}",
            "devices": line["devices"],
            "hosts": ", ".join(line["addresses"]),
            "since": _when(line["since"]) if line["since"] else "",
        }
        for line in found["islands"]
    ]
    return (
        '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="2">'
        "<title>Pathways</title><style>body{font:14px system-ui;margin:2em}"
        "td,th{padding:.2em .8em;text-align:left}</style>"
        f"<h1>Islands</h1>{_table(islands)}<h1>Clients</h1>{_table(clients)}"
        f"<h1>Lately</h1>{_table(lately)}"
    )


def _table(rows: Iterable[Mapping[str, Any]]) -> str:
    rows = list(rows)
    if not rows:
        return "<p>none</p>"
    head = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(value))}</td>" for value in row.values()) + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _when(at_s: float) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(at_s))


class IslandsPage:
    """Serves the page. Belongs to the event loop."""

    def __init__(self, manager: ResourceManager) -> None:
        self._manager = manager
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen and return the port. Raises OSError."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=_MOST_HEADER)
        return self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
                method, path, *_ = head.split(b"\r\n")[0].decode("latin-1").split(" ")
                writer.write(_encoded(page(self._manager, method, path.partition("?")[0])))
                await writer.drain()
        except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError):
            pass  # not HTTP, or the caller left
        except asyncio.LimitOverrunError:
            pass
        finally:
            writer.close()


def _encoded(reply: Page) -> bytes:
    body = reply.body.encode()
    head = (
        f"HTTP/1.1 {reply.status.value} {reply.status.phrase}\r\nContent-Type: {reply.kind}; "
        f"charset=utf-8\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
