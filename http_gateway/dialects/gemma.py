"""Gemma 3: [name(key=value), ...] at the start of an answer, in a fence of tool_code or without."""

from __future__ import annotations

import re
from collections.abc import Generator

from http_gateway.dialects.python_calls import MOST_CALL, PythonScan, arguments_of
from http_gateway.dialects.text_reader import Reading, TextReader

_FENCE, _CLOSE = "```tool_code", "```"
_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_LONGEST = 64


def read_gemma(reader: TextReader) -> Reading:
    yield from reader.blank()
    fence = yield from reader.literal(_FENCE)
    yield from reader.blank()
    listed = yield from reader.literal("[")
    yield from reader.blank()
    if (fence or listed) and (yield from _call(reader)):
        yield from _more_calls(reader, listed=bool(listed))
        if fence:
            yield from _closed(reader)
    else:
        reader.at = 0  # all of it is content
    yield from reader.until(())


def _more_calls(reader: TextReader, *, listed: bool) -> Reading:
    """Read the calls behind the first; what is none is left."""
    while True:
        reader.forget()
        yield from reader.blank()
        if listed and (yield from reader.literal("]")):
            return
        yield from reader.literal(",")
        yield from reader.blank()
        if not (yield from _call(reader)):
            reader.at = 0
            return


def _closed(reader: TextReader) -> Reading:
    start = reader.at
    yield from reader.blank()
    if not (yield from reader.literal(_CLOSE)):
        reader.at = start
    else:
        reader.forget()


def _call(reader: TextReader) -> Generator[None, None, bool]:
    """Read a call; where there is none, nothing is read."""
    start = reader.at
    name = yield from reader.matched(_NAME, _LONGEST)
    if name is None or name[0] not in reader.tools:
        return False
    reader.at = name.end()
    if not (yield from reader.next_is("(")):
        reader.at = start
        return False
    scan, place = PythonScan(), reader.at
    while True:
        place = scan.end(reader.text, place)
        if scan.complete or reader.ended or place - reader.at > MOST_CALL:
            break
        yield
    arguments = arguments_of(reader.text[reader.at : place], scan.deepest)
    if arguments is None or not scan.complete:
        reader.at = start
        return False
    reader.write_call(name[0], arguments)
    reader.at = place
    return True
