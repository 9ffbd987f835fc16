"""Every field of every HTTP route at a hundred times its bound, made from the table of fields."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import urlencode

import httpx

from sax.fields.field import Kind, RequestField, RequestRoute
from sax.fields.table import FIELD_NAME_BYTES, LABEL_BYTES, MOST_FIELDS, fields_of
from tests.end_to_end.cell import SMOLLM2, Cell
from tests.tools.stress.row import row

TIMES = 100
BODY = 7_800_000  # bytes of one value at most: within the gateway's default limit of a body

_SPEC = {"model": "/sax/test/other", "model_path": "llama", "checkpoint": "None", "replicas": 0}
_GOOD: dict[RequestRoute, dict[str, object]] = {
    RequestRoute.CHAT: {"model": SMOLLM2, "messages": [{"role": "user", "content": "Hi"}]},
    RequestRoute.COMPLETIONS: {"model": SMOLLM2, "prompt": "Hi", "max_tokens": 1},
    RequestRoute.MESSAGES: {
        "model": SMOLLM2,
        "max_tokens": 1,
        "messages": [{"role": "user", "content": "Hi"}],
    },
    RequestRoute.COUNT_TOKENS: {
        "model": SMOLLM2,
        "messages": [{"role": "user", "content": "Hi"}],
    },
    RequestRoute.OLLAMA_CHAT: {
        "model": SMOLLM2,
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": False,
    },
    RequestRoute.OLLAMA_GENERATE: {"model": SMOLLM2, "prompt": "Hi", "stream": False},
    RequestRoute.OLLAMA_EMBED: {"model": SMOLLM2, "input": "Hi"},
    RequestRoute.OLLAMA_EMBEDDINGS: {"model": SMOLLM2, "prompt": "Hi"},
    RequestRoute.OLLAMA_SHOW: {"model": SMOLLM2},
    RequestRoute.RESPONSES: {"model": SMOLLM2, "input": "Hi"},
    RequestRoute.CONVERSATIONS: {"items": [{"role": "user", "content": "Hi"}]},
    RequestRoute.BATCHES: {
        **{"input_file_id": "file-1", "endpoint": "/v1/completions"},
        "completion_window": "24h",
    },
    RequestRoute.EMBEDDINGS: {"model": SMOLLM2, "input": "Hi"},
    RequestRoute.RERANK: {"model": SMOLLM2, "query": "Hi", "documents": ["Hello"]},
    RequestRoute.SCORE: {"model": SMOLLM2, "text_1": "Hi", "text_2": "Hello"},
    RequestRoute.CLASSIFY: {"model": SMOLLM2, "input": "Hi"},
    RequestRoute.TEXT_TO_TOKENS: {"model": SMOLLM2, "prompt": "Hi"},
    RequestRoute.TOKENS_TO_TEXT: {"model": SMOLLM2, "tokens": [1]},
    RequestRoute.INFILL: {"model": SMOLLM2, "input_prefix": "Hi", "input_suffix": "you"},
    RequestRoute.GENERATE: {"model": SMOLLM2, "query": "Hi"},
    RequestRoute.PUBLISH: _SPEC,
    RequestRoute.UPDATE: _SPEC,
    RequestRoute.CANARY: {"model": "/sax/test/other", "percent": 10},
    RequestRoute.PROMOTE: {"model": "/sax/test/other"},
    RequestRoute.ABORT: {"model": "/sax/test/other"},
    RequestRoute.ROLLBACK: {"model": "/sax/test/other"},
    RequestRoute.UNPUBLISH: {"model": "/sax/test/other"},
    RequestRoute.LISTCELL: {"model": SMOLLM2},
    RequestRoute.LISTALL: {"sax_cell": "/sax/test"},
}


def text(size: int) -> bytes:
    return b'"%s"' % (b"x" * min(size, BODY))


def many(entry: bytes, count: int) -> bytes:
    """A JSON list, made without holding the interpreter, which the neighbour needs too."""
    return b"[%s%s]" % ((entry + b",") * (min(count, BODY // (len(entry) + 1)) - 1), entry)


def names(count: int) -> bytes:
    return b"{%s}" % b",".join(b'"k%d":1' % number for number in range(min(count, 20_000)))


def too_large(field: RequestField) -> Iterator[bytes]:
    """Values of a field, as JSON, a hundred times beyond each of its bounds."""
    count, size = TIMES * (field.count or 0), TIMES * (field.bytes or LABEL_BYTES)
    match field.kind:
        case Kind.TEXT | Kind.FLAG:
            yield text(size)
        case Kind.INTEGER:
            yield b"%d" % (TIMES * int(field.most or 1))
            yield b"9" * 4000
        case Kind.NUMBER:
            yield b"%d" % (TIMES * int(field.most or -1))
        case Kind.IDS:
            yield many(b"1", TIMES * (field.tokens or field.count or 0))
            yield b"[%d]" % (TIMES * int(field.most or 1))
        case Kind.MESSAGES:
            yield many(b'{"role":"user","content":""}', count)
        case Kind.OBJECTS:
            yield many(b'{"type":"function","function":{"name":"f"}}', count)
        case Kind.MAP:
            yield from (names(count), b"{%s:1}" % text(size), b'{"k":%s}' % text(size))
            yield b'{"k":%s}' % many(b"1", count)
        case Kind.BIASES:
            yield from (names(count), b"{%s:1}" % text(size))
            yield b'{"5":%d}' % (TIMES * int(field.most or 1))
        case Kind.TEXTS | Kind.PROMPTS:
            yield from (text(size), many(text(1), count), many(b"[]", count), many(b"1", BODY))
            yield from (many(b"[1]", count), many(b"{}", BODY))


def bodies(route: RequestRoute) -> Iterator[tuple[str, bytes]]:
    """A field at fault ("" for no single one) and a body: every field, and unknown ones."""
    for field in fields_of(route).values():
        for value in too_large(field):
            yield field.name, _with(route, field.name, value)
    for name in (*fields_of(route), "unknown"):
        yield name, _with(route, name, many(b"[]", BODY))
    yield "", _with(route, "x" * FIELD_NAME_BYTES * TIMES, b"1")
    yield "", b"{%s}" % b",".join(b'"x%d":1' % n for n in range(MOST_FIELDS * TIMES))


def _with(route: RequestRoute, name: str, value: bytes) -> bytes:
    """A good body but for one field; `messages.role` is the role of a message."""
    outer, _, inner = name.partition(".")
    if inner:
        value = b'[{"role":"user","content":"Hi",%s:%s}]' % (json.dumps(inner).encode(), value)
    good = {key: each for key, each in _GOOD[route].items() if key != outer}
    return b"%s,%s:%s}" % (json.dumps(good).encode()[:-1], json.dumps(outer).encode(), value)


def attack(cell: Cell, route: RequestRoute) -> str:
    """Send every body of a route; each must be refused, by the field's name or as a whole."""
    sent = 0
    with httpx.Client(base_url=cell.url, timeout=30, trust_env=False) as http:
        for name, body in bodies(route):
            method = "PUT" if route is RequestRoute.UPDATE else "POST"
            reply = http.request(method, route, content=body)
            said = reply.text[:2000]
            assert reply.status_code in (400, 413, 422), f"{name}: {reply.status_code} {said[:100]}"
            assert name.partition(".")[0] in said or "the body" in said, f"{name}: {said[:100]}"
            sent += 1
    return f"{sent} requests, each refused with the field's name"


def _add(route: RequestRoute) -> None:
    def every_field(cell: Cell) -> str:
        return attack(cell, route)

    every_field.__name__ = f"fields_of_{route.name.lower()}"
    row(f"every field of {route} at {TIMES} times its bound")(every_field)


for _route in _GOOD:
    _add(_route)


@row(f"every field of the GET routes at {TIMES} times its bound")
def fields_in_urls(cell: Cell) -> str:
    sent = 0
    with httpx.Client(base_url=cell.url, timeout=30, trust_env=False) as http:
        for route in (RequestRoute.MODEL, RequestRoute.EVENTS, RequestRoute.LISTCELL):
            for field in fields_of(route).values():
                for value in too_large(field):
                    plain = value.decode().strip('"')
                    path = route.replace("{name}", plain) if field.name == "name" else route
                    query = "" if field.name == "name" else "?" + urlencode({field.name: plain})
                    reply = http.get(path + query)
                    assert reply.status_code in (400, 413, 414, 422), reply.text[:100]
                    sent += 1
    return f"{sent} requests, each refused"
