"""Canonical answers: what differs between two runs of one build is replaced, the rest is kept."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from itertools import groupby
from typing import Any, cast

import httpx
import numpy as np

# Ids, addresses and times are drawn anew or told by a clock.
_TEXTS = (
    (re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b"), "<id>"),
    (re.compile(r"(?<![0-9a-f])[0-9a-f]{16,}(?![0-9a-f])"), "<id>"),
    (re.compile(r"(?:127\.0\.0\.1|localhost|\[::1?\]|0\.0\.0\.0):\d+"), "<address>"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d[\d:.]*(?:Z|[+-]\d\d:\d\d)?"), "<time>"),
)
_TIMES = re.compile(r"created|.*(_at|_duration|_s|_s_ago|_ms|_per_second)")
# How busy servers are reaches a page with a heartbeat, some seconds later.
_COUNTS = {"activity", "arrived", "running", "queued", "pending_requests"}
_PIECES = {  # texts and lists that a stream brings piece by piece, in pieces of any size
    *("content", "text", "delta", "arguments", "reasoning", "reasoning_content", "thinking"),
    *("partial_json", "response", "token_ids", "logprobs", "tokens", "token_logprobs"),
    *("top_logprobs", "text_offset", "tool_calls"),
}
_COMMON_HEADERS = {"content-type", "x-request-id"}
_TRANSPORT = {"date", "server", "content-length", "transfer-encoding", "connection"}
_LONG = 16  # numbers of a list that is told by its first ones and its size
_PAGE = 2000  # characters of a text that is told by its hash


def canonical(value: Any, hidden: Mapping[str, str], key: str = "") -> Any:
    """Return a JSON value without times, ids and the texts in `hidden`, floats with 4 digits."""
    match value:
        case dict():
            found = cast("dict[str, Any]", value)
            if key in _COUNTS:
                return dict.fromkeys(sorted(found), "<count>")
            return {name: canonical(found[name], hidden, name) for name in sorted(found)}
        case int() | float() | str() if _TIMES.fullmatch(key) and not isinstance(value, bool):
            return "<time>"
        case int() if key in _COUNTS:
            return "<count>"
        case float():
            return round(value, 4) + 0.0 if math.isfinite(value) else str(value)
        case str() if key == "embedding":
            floats = np.frombuffer(base64.b64decode(value), "<f4")
            return {"base64": canonical(floats.tolist(), hidden)}
        case str():
            return _text(value, hidden)
        case list() | tuple():
            return _list(cast("list[Any]", value), hidden)
        case _:
            return value


def _list(values: list[Any], hidden: Mapping[str, str]) -> Any:
    if len(values) > _LONG and all(type(each) is float for each in values):
        size = math.sqrt(sum(each * each for each in values) / len(values))
        told = [round(each, 4) + 0.0 for each in values[: _LONG // 2]]
        return {"first": told, "numbers": len(values), "rms": round(size, 4)}
    return [canonical(each, hidden) for each in values]


def _text(text: str, hidden: Mapping[str, str]) -> str:
    for found, name in hidden.items():
        text = text.replace(found, name)
    for pattern, name in _TEXTS:
        text = pattern.sub(name, text)
    return text if len(text) <= _PAGE else f"{len(text)} characters, {digest(text)}"


def digest(value: Any) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def reply_of(response: httpx.Response, hidden: Mapping[str, str]) -> dict[str, Any]:
    """Return the status, the kind, the unusual headers and the body of a reply."""
    path, kind = response.url.path, response.headers.get("content-type", "").partition(";")[0]
    unusual = sorted((set(response.headers) - _TRANSPORT) ^ _COMMON_HEADERS)
    if kind == "text/event-stream":
        body: Any = merged(_events(response.text))
    elif kind == "application/x-ndjson":
        body = merged(("", json.loads(line)) for line in response.text.splitlines())
    elif path == "/openapi.json" and response.is_success and response.text:
        body = {part: digest(held) for part, held in _parts(response.json()).items()}
    elif path == "/metrics" and response.is_success:
        body = metric_names(response.text)
    else:
        body = response.json() if kind == "application/json" and response.text else response.text
    told = {"status": response.status_code, "kind": kind, "body": canonical(body, hidden)}
    return told | ({"headers": unusual} if unusual else {})


def _parts(document: dict[str, Any]) -> dict[str, Any]:
    return document.pop("paths") | document.pop("components")["schemas"] | document


def metric_names(page: str) -> list[str]:
    return sorted({line[7:] for line in page.splitlines() if line.startswith("# TYPE ")})


def _events(text: str) -> Iterable[tuple[str, Any]]:
    name = ""
    for line in text.splitlines():
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            yield name, json.loads(line[6:]) if line[6:7] == "{" else line[6:]
            name = ""


def merged(events: Iterable[tuple[str, Any]]) -> list[Any]:
    """Return the events of a stream, those of one kind and place that follow each other as one:
    how many tokens come with an event is a matter of time. Numbers of events are left out."""
    told: list[Any] = []
    for (name, *_), group in groupby(events, _kind_of):
        whole: Any = None
        for _, event in group:
            whole = joined(whole, _unnumbered(event))
        told.append([name, whole] if name else whole)
    return told


def _kind_of(event: tuple[str, Any]) -> tuple[str, str]:
    name, held = event
    if not isinstance(held, dict):
        return name, str(held)
    fields = cast("dict[str, Any]", held)
    return name, str([fields.get(each) for each in ("type", "object", "index", "output_index")])


def _unnumbered(event: Any) -> Any:
    if isinstance(event, dict):
        return {k: v for k, v in cast("dict[str, Any]", event).items() if k != "sequence_number"}
    return event


def joined(before: Any, after: Any, key: str = "") -> Any:
    """Return two pieces of a reply as one: texts and lists of pieces grow, the rest is the last."""
    match before, after:
        case dict(), dict():
            both = cast("dict[str, Any]", before), cast("dict[str, Any]", after)
            names = both[0].keys() | both[1].keys()
            return {name: joined(both[0].get(name), both[1].get(name), name) for name in names}
        case list(), list():
            return _lists(cast("list[Any]", before), cast("list[Any]", after), key)
        case str(), str() if key in _PIECES:
            return before + after
        case _, None | "":
            return before
        case _:
            return after


def _lists(before: list[Any], after: list[Any], key: str) -> list[Any]:
    if not all(isinstance(each, dict) and "index" in each for each in (*before, *after)):
        return before + after if key in _PIECES else after
    places = {each["index"]: each for each in before}
    for each in after:
        places[each["index"]] = joined(places.get(each["index"]), each)
    return [places[index] for index in sorted(places)]
