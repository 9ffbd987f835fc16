"""Reads a call that is a JSON object: {"name": ..., "arguments": {...}}, or under other keys.

The usual order of fields is streamed. An object of another order is held until it is whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Sequence
from functools import cache
from typing import Any, NamedTuple, cast

from sax.dialects.text_reader import JsonScan, TextReader

_BLANK = r"[ \n\t\r]{0,16}"
_ARGUMENTS = ("arguments", "parameters")
_IDS = ("id", "tool_call_id")
_LONGEST_HEAD = 512  # characters


def _beginnings(parts: list[str]) -> str:
    """Return a pattern for every beginning of these parts in a row."""
    pattern = ""
    for part in reversed(parts):
        pattern = f"(?:{part}{pattern})?"
    return pattern + r"\Z"


def _head(named: str, field: str) -> list[str]:
    def word(text: str) -> list[str]:
        return [re.escape(character) for character in f'"{text}"']

    return [
        *(r"\{", _BLANK, *word(named), _BLANK, ":", _BLANK, '"', r'[^"\\]{0,128}', '"', _BLANK),
        *(",", _BLANK, *word(field), _BLANK, ":", _BLANK),
    ]


class _CallKeys(NamedTuple):
    """Patterns of a call's beginning under the keys that it may have."""

    names: tuple[str, ...]
    arguments: tuple[str, ...]
    head: re.Pattern[str]
    begun: tuple[re.Pattern[str], ...]


@cache
def _keys(name_key: str, arguments_key: str) -> _CallKeys:
    names = tuple(dict.fromkeys((name_key, "name")))
    arguments = tuple(dict.fromkeys((arguments_key, *_ARGUMENTS)))
    either, fields = ("|".join(map(re.escape, each)) for each in (names, arguments))
    head = re.compile(
        rf'\{{{_BLANK}"(?:{either})"{_BLANK}:{_BLANK}"([^"\\]{{1,128}})"{_BLANK},{_BLANK}'
        rf'"(?:{fields})"{_BLANK}:{_BLANK}(?=\{{)'
    )
    begun = (re.compile(_beginnings(_head(name, field))) for name in names for field in arguments)
    return _CallKeys(names, arguments, head, tuple(begun))


def call_object(
    reader: TextReader, name_key: str = "name", arguments_key: str = "arguments"
) -> Generator[None, None, bool]:
    """Read the object that stands here. False: it was no call, and nothing but `reader.at` has
    changed, which is behind it."""
    keys = _keys(name_key, arguments_key)
    while True:
        if found := keys.head.match(reader.text, reader.at):
            break
        rest = reader.text[reader.at : reader.at + _LONGEST_HEAD]
        if reader.ended or not any(begun.match(rest) for begun in keys.begun):
            break
        yield
    if found and found[1] in reader.tools:
        yield from _streamed(reader, found)
        return True
    if not (yield from reader.next_is("{")):
        return False
    source = yield from reader.whole_object()
    call = call_of(source, keys.names, keys.arguments)
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


def call_of(
    source: str, names: Sequence[str] = ("name",), fields: Sequence[str] = _ARGUMENTS
) -> tuple[str, str, str] | None:
    """Return the name, the arguments as JSON and the id ("": none) of a whole object; None: it is
    no call. names, fields: keys of name and arguments. A call in `function` counts."""
    try:
        value = json.loads(source)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    whole = cast("dict[str, Any]", value)
    inner = whole.get("function")
    call = cast("dict[str, Any]", inner) if isinstance(inner, dict) else whole
    name = next((call[key] for key in names if key in call), None)
    arguments: Any = next((call[field] for field in fields if field in call), None) or {}
    if isinstance(arguments, str) and _is_object(arguments):
        source = arguments
    elif isinstance(arguments, dict):
        source = json.dumps(arguments, ensure_ascii=False)
    else:
        return None
    id = next((whole[key] for key in _IDS if isinstance(whole.get(key), str)), "")
    return (name, whole_characters(source), id) if isinstance(name, str) else None


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
