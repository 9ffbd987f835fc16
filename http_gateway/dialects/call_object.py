"""Reads a call that is a JSON object: {"name": ..., "arguments": {...}}.

The usual order of fields is streamed. An object of another order is held until it is whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from typing import Any, cast

from http_gateway.dialects.json_scan import JsonScan
from http_gateway.dialects.text_reader import Reading, TextReader

_BLANK = r"[ \n\t\r]{0,16}"
_ARGUMENTS = ("arguments", "parameters")
_LONGEST_HEAD = 512  # characters


def _beginnings(parts: list[str]) -> str:
    """Return a pattern for every beginning of these parts in a row."""
    pattern = ""
    for part in reversed(parts):
        pattern = f"(?:{part}{pattern})?"
    return pattern + r"\Z"


def _head(field: str) -> list[str]:
    def word(text: str) -> list[str]:
        return [re.escape(character) for character in f'"{text}"']

    return [
        *(r"\{", _BLANK, *word("name"), _BLANK, ":", _BLANK, '"', r'[^"\\]{0,64}', '"', _BLANK),
        *(",", _BLANK, *word(field), _BLANK, ":", _BLANK),
    ]


_HEAD = re.compile(
    rf'\{{{_BLANK}"name"{_BLANK}:{_BLANK}"([^"\\]{{1,128}})"{_BLANK},{_BLANK}'
    rf'"(?:{"|".join(_ARGUMENTS)})"{_BLANK}:{_BLANK}(?=\{{)'
)
_BEGUN = [re.compile(_beginnings(_head(field))) for field in _ARGUMENTS]


def call_object(reader: TextReader) -> Generator[None, None, bool]:
    """Read the object that stands here. False: it was no call, and nothing but `reader.at` has
    changed, which is behind it."""
    while True:
        if found := _HEAD.match(reader.text, reader.at):
            break
        rest = reader.text[reader.at : reader.at + _LONGEST_HEAD]
        if reader.ended or not any(begun.match(rest) for begun in _BEGUN):
            break
        yield
    if found and found[1] in reader.tools:
        yield from _streamed(reader, found)
        return True
    if not (yield from reader.next_is("{")):
        return False
    source = yield from reader.whole_object()
    call = call_of(source)
    if call is None or call[0] not in reader.tools:
        return False
    reader.write_call(*call)
    return True


def _streamed(reader: TextReader, head: re.Match[str]) -> Generator[None, None, None]:
    reader.begin_call(head[1])
    reader.at = head.end()
    yield from reader.arguments()
    reader.end_call()
    yield from reader.blank()
    if (yield from reader.literal(",")):  # fields that a call does not have
        scan = JsonScan(depth=1)
        while True:
            reader.at = scan.end(reader.text, reader.at)
            if scan.complete or reader.ended:
                return
            yield
    yield from reader.literal("}")


def call_of(source: str) -> tuple[str, str] | None:
    """Return the name and the arguments, as JSON, of a whole object; None: it is no call."""
    try:
        value = json.loads(source)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    call = cast("dict[str, Any]", value)
    name = call.get("name")
    arguments: Any = next((call[field] for field in _ARGUMENTS if field in call), None) or {}
    if isinstance(arguments, str) and _is_object(arguments):
        source = arguments
    elif isinstance(arguments, dict):
        source = json.dumps(arguments, ensure_ascii=False)
    else:
        return None
    return (name, whole_characters(source)) if isinstance(name, str) else None


def whole_characters(text: str) -> str:
    """Return the text with pairs of surrogates joined, and halves of pairs replaced: escapes of
    JSON and of Python can write both, and UTF-8 neither."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _is_object(source: str) -> bool:
    try:
        return isinstance(json.loads(source), dict)
    except (ValueError, RecursionError):
        return False


_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


def read_hermes(reader: TextReader) -> Reading:
    """Hermes and Qwen: <tool_call>{"name": ..., "arguments": {...}}</tool_call>."""
    while (yield from reader.until((_OPEN,))):
        yield from reader.blank()
        if not (yield from call_object(reader)):
            reader.say(_OPEN + reader.text[: reader.at])
            continue
        yield from reader.blank()
        yield from reader.literal(_CLOSE)


_TAG = "<|python_tag|>"


def read_llama3(reader: TextReader) -> Reading:
    """Llama 3: {"name": ..., "parameters": {...}}, at the start of an answer or after
    <|python_tag|>; several are separated by ";".
    """
    yield from reader.blank()
    tag = yield from reader.literal(_TAG)
    yield from _calls(reader, "")
    while tag := (yield from reader.until((_TAG,))):
        yield from reader.blank()
        yield from _calls(reader, tag)


def _calls(reader: TextReader, before: str) -> Reading:
    """Read calls; before: text to return with what is none."""
    while (yield from reader.next_is("{")):
        if not (yield from call_object(reader)):
            break
        before = ""
        reader.forget()
        yield from reader.blank()
        if before := (yield from reader.literal(";")):
            reader.forget()
            yield from reader.blank()
    reader.say(before + reader.text[: reader.at])
    reader.forget()


_MARK, _ARGS, _ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_NAME = re.compile(r"[\w.-]+")
_LONGEST = 64  # characters of a name or an id


def read_mistral(reader: TextReader) -> Reading:
    """Mistral: [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...], and newer models'
    [TOOL_CALLS]name[ARGS]{...} with an id in between or without.
    """
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
