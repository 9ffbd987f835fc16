"""Finds the name and arguments of a rendered call by its keys and values, which are known."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from os.path import commonprefix
from typing import Any, NamedTuple

from sax.call_form import Arguments, CallForm
from sax.chat import ToolCall

# Arguments of the call, one of each type
VALUES: Mapping[str, Any] = {
    "kqa": "Vqa",
    "kqb": 31337,
    "kqc": True,
    "kqd": None,
    "kqe": [17, "Vqe"],
    "kqf": {"kqz": "Vqf"},
    "kqg": "Vqg",
}
_TYPES = {
    "kqa": "string",
    "kqb": "number",
    "kqc": "boolean",
    "kqd": "null",
    "kqe": "array",
    "kqf": "object",
}
# How the value of a key begins where it is no text.
_BEGINNINGS = {
    "kqb": re.compile("31337"),
    "kqc": re.compile("true|True"),
    "kqd": re.compile('(?<!")(?:null|None)'),
    "kqe": re.compile(r"\[\s*17"),
    "kqf": re.compile(r"""\{\s*["']kqz"""),
}
_TAG = re.compile(r"\]<\]\w+\[>\[(?:<[^<>\n]*>)?|<[^<>\n]*>|\[[^\[\]\s]*\]")


class FoundCall(NamedTuple):
    """The name and arguments of the first call: their places, and what the arguments tell."""

    name: int
    head: str  # from the name to the arguments, both left out
    end: int  # of the arguments
    form: CallForm


def found_call(text: str, call: ToolCall) -> FoundCall | None:
    """Return a call of VALUES in a rendered turn; None: in no form known here."""
    name, key = call.name, text.find("kqa")
    named = text.rfind(name, 0, key) if key >= 0 else -1
    if named < 0:
        named, name = text.rfind(call.id, 0, max(key, 0)), call.id
    if named < 0:
        return None
    behind = named + len(name)
    for place in _places(text, "{", behind, key):
        with suppress(ValueError):
            value, end = json.JSONDecoder().raw_decode(text, place)
            if value == VALUES:
                return FoundCall(named, text[behind:place], end, CallForm(Arguments.JSON))
    return _pairs(text, named, behind)


def _places(text: str, mark: str, start: int, end: int) -> Iterator[int]:
    place = text.find(mark, start, end)
    while place >= 0:
        yield place
        place = text.find(mark, place + 1, end)


def _pairs(text: str, named: int, behind: int) -> FoundCall | None:
    first, second, last = "kqa", "kqb", "kqg"
    key = text.find(first, behind)
    value = text.find("Vqa", key)
    following = text.find(second, value)
    last_value = text.find("Vqg", text.find(last, following))
    if min(key, value, following, last_value) < 0:
        return None
    head, colon = text[behind:key], text[key + len(first) : value]
    gap, rest = text[value + 3 : following], text[last_value + 3 :]
    if colon.strip() in ("=", '="', "='") and head.strip().endswith("("):
        return _python(text, named, head, last_value + 3, colon, gap)
    if (
        colon.startswith(":")
        and colon[1:].strip()
        and gap.startswith(colon[1:])
        and head.endswith("{")
    ):
        end = text.find("}", last_value) + 1
        form = CallForm(Arguments.LOOSE, quote=colon[1:])
        return FoundCall(named, head.removesuffix("{"), end, form)
    if first in gap:
        return _tagged(text, named, head, gap, last_value + 3)
    return _marked(text, named, head, gap, rest, last_value + 3)


def _python(text: str, named: int, head: str, end: int, colon: str, gap: str) -> FoundCall:
    words, quote = "True" in text, colon.strip()[1:]
    end += len(quote)
    comma = gap.removeprefix(quote)
    form = CallForm(Arguments.PYTHON, python_words=words, comma=comma if comma == "," else ", ")
    return FoundCall(named, head, end, form)


def _marked(text: str, named: int, head: str, gap: str, rest: str, end: int) -> FoundCall | None:
    pair = shared_end(head, gap)
    gap = gap.removesuffix(pair) if pair else gap
    close = shared_start(gap, rest)
    colons = _colons(text, named)
    if not colons:
        return None
    quoted = close.startswith('"') and colons["string"].endswith('"')
    quoted = quoted and not colons.get("number", '"').endswith('"')
    if quoted:
        colons["string"], close = colons["string"][:-1], close[1:]
    if not all(mark.strip() for mark in (pair, close, *colons.values())):
        return None  # nothing tells where a key or a value ends
    same = len(set(colons.values())) == 1
    form = CallForm(
        Arguments.PAIRS,
        pair=pair,
        colon={"": colons["string"]} if same else colons,
        close=close,
        comma=gap.removeprefix('"' + close if quoted else close),
        quoted=quoted,
        python_words="True" in text or "['" in text or "'Vqe'" in text,
    )
    return FoundCall(named, head.removesuffix(pair), end + len(close) + quoted, form)


def _tagged(text: str, named: int, head: str, gap: str, end: int) -> FoundCall | None:
    """Read a form whose keys stand behind their values, too. gap: from the first value to the
    second key; end: of the last value."""
    close, _, behind = gap.partition("kqa")
    # What stands behind the first key is what begins the rest of the gap.
    key = text.find("kqa", named) + 3
    colon = text[key : text.find("Vqa", key)]
    pair = behind.removeprefix(colon)
    listed = text[text.find("kqe", named) + 3 :].removeprefix(colon + pair)
    item = listed.partition(colon)[0]
    if not (colon.strip() and pair.strip() and head.endswith(pair) and item.isidentifier()):
        return None
    form = CallForm(Arguments.TAGS, pair=pair, colon={"": colon}, close=close, item=item)
    return FoundCall(named, head.removesuffix(pair), end + len(close) + 3 + len(colon), form)


def _colons(text: str, start: int) -> dict[str, str]:
    """Return what stands behind a key, by the type of its value."""
    found: dict[str, str] = {}
    for key, kind in _TYPES.items():
        place = text.find(key, start)
        if place < 0:
            continue  # some leave out what is null
        behind = place + len(key)
        pattern = _BEGINNINGS.get(key) or re.compile("Vqa")
        value = pattern.search(text, behind)
        if value is None:
            return {}
        found[kind] = text[behind : value.start()]
    return found


def shared_end(one: str, other: str) -> str:
    """Return the end that two texts share, not from within a tag."""
    length = len(commonprefix([one[::-1], other[::-1]]))
    for text in (one, other):
        start = len(text) - length
        length = len(text) - _behind_tag(text, start)
    return one[len(one) - length :] if length else ""


def shared_start(one: str, other: str) -> str:
    """Return the start that two texts share, not into a tag."""
    length = len(commonprefix([one, other]))
    for text in (one, other):
        length = boundary(text, length)
    return one[:length]


def boundary(text: str, place: int) -> int:
    """Return the start of the tag that a place is inside of, or the place."""
    return next((t.start() for t in _TAG.finditer(text) if t.start() < place < t.end()), place)


def _behind_tag(text: str, place: int) -> int:
    return next((t.end() for t in _TAG.finditer(text) if t.start() < place < t.end()), place)
