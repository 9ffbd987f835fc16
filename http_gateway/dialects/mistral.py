"""Mistral: [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...], and newer models'
[TOOL_CALLS]name[ARGS]{...} with an id in between or without."""

from __future__ import annotations

import re
from collections.abc import Generator

from http_gateway.dialects.call_object import call_object
from http_gateway.dialects.text_reader import Reading, TextReader

_MARK, _ARGS, _ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_NAME = re.compile(r"[\w.-]+")
_LONGEST = 64  # characters of a name or an id


def read_mistral(reader: TextReader) -> Reading:
    while (yield from reader.until((_MARK,))):
        yield from reader.blank()
        if (yield from reader.next_is("[")):
            made = yield from _listed(reader)
        elif (yield from reader.next_is("{")):
            made = yield from call_object(reader)
        else:
            made = yield from _named(reader)
        if not made:
            reader.say(_MARK + reader.text[: reader.at])
            reader.forget()


def _listed(reader: TextReader) -> Generator[None, None, bool]:
    """Read a list of calls. False: the first of them is none."""
    reader.at += 1
    yield from reader.blank()
    if not (yield from call_object(reader)):
        return False
    while True:
        reader.forget()
        yield from reader.blank()
        if (yield from reader.literal(",", "]")) != ",":
            return True
        yield from reader.blank()
        if not (yield from call_object(reader)):
            reader.say(reader.text[: reader.at])
            reader.forget()
            return True


def _named(reader: TextReader) -> Generator[None, None, bool]:
    name = yield from reader.matched(_NAME, _LONGEST)
    if name is None or name[0] not in reader.tools:
        return False
    reader.at = name.end()
    id = ""
    if (yield from reader.literal(_ID)):
        found = yield from reader.matched(_NAME, _LONGEST)
        if found is None:
            return False
        id, reader.at = found[0], found.end()
    yield from reader.literal(_ARGS)
    yield from reader.blank()
    if not (yield from reader.next_is("{")):
        return False
    reader.begin_call(name[0], id)
    yield from reader.arguments()
    reader.end_call()
    return True
