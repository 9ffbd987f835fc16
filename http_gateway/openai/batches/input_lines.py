"""The lines of a batch's input file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from http_gateway.openai.batches.records import BatchFault
from sax.fields.field import RequestRoute

MOST_LINES = 50_000  # OpenAI's own limit
LINE_BYTES = 8 << 20  # 6 MB of images; files are read and checked on the event loop
ENDPOINTS = (
    RequestRoute.CHAT,
    RequestRoute.COMPLETIONS,
    RequestRoute.EMBEDDINGS,
    RequestRoute.RESPONSES,
)
_LINES_AT_ONCE = 256
_MOST_FAULTS = 100
_CUSTOM_ID_BYTES = 512


@dataclass(frozen=True, slots=True)
class BatchLine:
    number: int  # in the file, from 1
    custom_id: str
    body: Mapping[str, Any]


class LineFault(Exception):
    """A line is wrong: no line of the file is run."""

    def __init__(self, fault: BatchFault) -> None:
        super().__init__(fault.message)
        self.fault = fault


async def lines_of(content: AsyncIterator[bytes]) -> AsyncIterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their numbers from 1. Raises LineFault."""
    held, number = b"", 0
    async for piece in content:
        *whole, held = (held + piece).split(b"\n")
        for line in whole:
            number += 1
            if number % _LINES_AT_ONCE == 0:
                await asyncio.sleep(0)  # reading the lines of a piece must not stop all streams
            if line.strip():
                yield number, line
        _check_length(held, number + 1)
    if held.strip():
        yield number + 1, held


def read_line(number: int, line: bytes, endpoint: str) -> BatchLine:
    """Raises LineFault."""
    _check_length(line, number)
    try:
        given: object = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
        raise _fault(number, "invalid_json_line", "is no JSON: send one object a line") from exc
    if not isinstance(given, dict):
        raise _fault(number, "invalid_request", "is no object")
    fields = cast("dict[str, Any]", given)
    unknown = [name for name in fields if name not in ("custom_id", "method", "url", "body")]
    if unknown:
        name = str(unknown[0])[:80]
        raise _fault(number, "unknown_field", f"has a field {name!r}: leave it out", name)
    custom_id = fields.get("custom_id")
    if not isinstance(custom_id, str) or not 0 < len(custom_id.encode()) <= _CUSTOM_ID_BYTES:
        raise _fault(
            number, "missing_custom_id", "needs a custom_id of 1 to 512 bytes", "custom_id"
        )
    if fields.get("method") != "POST":
        raise _fault(number, "invalid_method", "needs the method POST", "method")
    if fields.get("url") != endpoint:
        raise _fault(
            number, "invalid_url", f"needs the url {endpoint}, as the batch's endpoint", "url"
        )
    return BatchLine(number, custom_id, _body(number, fields.get("body"), endpoint))


def _body(number: int, body: object, endpoint: str) -> Mapping[str, Any]:
    if not isinstance(body, dict):
        raise _fault(number, "invalid_body", "needs a body that is an object", "body")
    fields = cast("dict[str, Any]", body)
    for name, what in (("stream", "streamed"), ("background", "answered in the background")):
        if fields.get(name):
            told = f"cannot be {what}: leave out {name}"
            raise _fault(number, "invalid_body", told, f"body.{name}")
    if "priority" in fields and endpoint != RequestRoute.EMBEDDINGS:
        raise _fault(
            number,
            "invalid_body",
            "has a priority, and all lines of batches have the least: leave it out",
            "body.priority",
        )
    return fields


async def check_lines(content: AsyncIterator[bytes], endpoint: str) -> tuple[int, list[BatchFault]]:
    """Return the number of lines, and what is wrong with the file."""
    total, faults, seen = 0, list[BatchFault](), set[str]()
    try:
        async for number, raw in lines_of(content):
            total += 1
            if total > MOST_LINES:
                text = f"the file has more than {MOST_LINES} lines: make it several batches"
                return total, [*faults, BatchFault(code="too_many_lines", message=text)]
            try:
                line = read_line(number, raw, endpoint)
                if line.custom_id in seen:
                    raise _fault(
                        number,
                        "duplicate_custom_id",
                        "has the custom_id of an earlier line",
                        "custom_id",
                    )
                seen.add(line.custom_id)
            except LineFault as error:
                faults.append(error.fault)
            if len(faults) >= _MOST_FAULTS:
                break
    except LineFault as error:  # a line too long to be held
        faults.append(error.fault)
    if not total and not faults:
        faults.append(BatchFault(code="empty_file", message="the file has no lines"))
    return total, faults


def _check_length(line: bytes, number: int) -> None:
    if len(line) > LINE_BYTES:
        raise _fault(number, "line_too_long", f"has more than {LINE_BYTES} bytes: send less")


def _fault(number: int, code: str, text: str, param: str | None = None) -> LineFault:
    message = f"line {number} {text}"
    return LineFault(BatchFault(code=code, message=message, line=number, param=param))
