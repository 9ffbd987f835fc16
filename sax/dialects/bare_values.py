"""Arguments that are not written as one JSON object: pairs of keys and values between marks, and
objects whose texts stand between quotes of their own. Both are streamed as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Generator, Mapping, Sequence

from sax.call_form import CallForm
from sax.dialects.python_call import literal_of
from sax.dialects.text_reader import TextReader

_SECTION = "<![CDATA["
# By parameter (within tags by path, as in at.x and tags.item), the JSON types that a value may
# have; one that is missing may have any. A key that is here may have in it what ends others.
Kinds = Mapping[str, Collection[str]]
JSON_TYPES: dict[type, str] = {
    **{str: "string", bool: "boolean", type(None): "null", int: "number", float: "number"},
    **{list: "array", dict: "object"},
}


def read_pairs(
    reader: TextReader, form: CallForm, begin: Callable[[], None], kinds: Kinds
) -> Generator[None, None, bool]:
    """Read the pairs that stand here. False: there are none, nor the end of a call, and nothing
    was read."""
    first = yield from reader.spaced(form.pair)
    if not first and not (yield from at_tail(reader, form.tail)):
        return False
    begin()
    reader.add_arguments("{")
    separator, more = "", first
    while more:
        if not (yield from _pair(reader, form, kinds, separator)):
            return True
        separator = ", "
        yield from reader.spaced(form.comma)
        more = yield from reader.spaced(form.pair)
    reader.add_arguments("}")
    return True


def at_tail(reader: TextReader, text: str) -> Generator[None, None, bool]:
    """True if the text stands here, or begins to at the end of the answer."""
    start = reader.at
    stands = yield from reader.spaced(text)
    reader.at = start
    return stands and bool(text.strip())


def _pair(
    reader: TextReader, form: CallForm, kinds: Kinds, separator: str
) -> Generator[None, None, bool]:
    """Read a key and its value. False: the text ended first."""
    name = yield from _key(reader, form, kinds)
    if name is None:
        return False
    told = yield from _colon(reader, form)
    reader.forget()
    types = kinds.get(name, JSON_TYPES.values()) if told == "" else (told,)
    reader.add_arguments(f"{separator}{dumps(name)}: ")
    section = form.cdata and (yield from reader.literal(_SECTION))
    close = form.close.rstrip()  # white space behind it is as much or as little as there is
    marks = (f"]]>{close}",) if section else tuple({close, close.lstrip()})
    if section or (set(types) == {"string"} and not form.quoted):
        reader.add_arguments('"')
        if not (yield from reader.until(marks, lambda text: escaped(reader, text))):
            return False
        reader.add_arguments('"')
        return True
    parts: list[str] = []
    found = yield from reader.until(marks, parts.append)
    text = "".join(parts)
    made = _json(text.strip()) if form.quoted else None
    reader.add_arguments(json_of(text, types) if made is None else made)
    return bool(found)


def _key(reader: TextReader, form: CallForm, kinds: Kinds) -> Generator[None, None, str | None]:
    """Read a key and the beginning of what is behind it; None: the text ended first."""
    colons = form.colon.values()
    begun = {colon[: colon.index(first := colon.split()[0])] + first for colon in colons}
    firsts = {each.lstrip() for each in begun}
    marked = (key for key in kinds if any(first in key for first in firsts))
    known = {key + behind: key for key in marked for behind in begun}
    if form.pair[-1:].isspace():
        yield from reader.blank()
    if found := (yield from reader.literal(*longest_first(known))):
        return known[found]
    key: list[str] = []
    if not (yield from reader.until(tuple(firsts), key.append)):
        return None
    name = "".join(key)
    return name.rstrip() if any(colon[0].isspace() for colon in colons) else name


def longest_first(texts: Collection[str]) -> list[str]:
    """Return the texts in the order in which one that begins as another is tried before it."""
    return sorted(texts, key=len, reverse=True)


def _colon(reader: TextReader, form: CallForm) -> Generator[None, None, str]:
    """Read what is left of the text behind a key, and return the type of the value that it tells,
    or ""."""
    for kind, colon in form.colon.items():
        rest = colon.split(maxsplit=1)[1:]
        if not rest or (yield from reader.spaced(rest[0])):
            yield from reader.literal(colon[len(colon.rstrip()) :])
            return kind if form.behind_key("string") != form.behind_key("number") else ""
    return ""


def escaped(reader: TextReader, text: str) -> None:
    reader.add_arguments(dumps(text)[1:-1])


def json_of(text: str, types: Collection[str]) -> str:
    """Return a value that was written without quotes as JSON: one of these types if it is, else a
    text."""
    source = text.strip()
    for read in (_json, literal_of):
        if source and (made := read(source)) is not None:
            kind = JSON_TYPES[type(json.loads(made))]
            if kind in types and kind != "string":
                return made
    if "string" not in types and (made := _json(source)) is not None:
        return made
    return dumps(text)


def _json(source: str) -> str | None:
    try:
        json.loads(source, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return source


def _refuse(word: str) -> None:
    raise ValueError(word)


def dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


_BARE = re.compile(r"[^{}\[\],]+")
_STOP = re.compile(r"[{}\[\],:]")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?\Z")
_WORDS = {"true": "true", "false": "false", "null": "null"}
_LONGEST = 4096  # characters of a key, a number or a word


def read_loose(
    reader: TextReader, form: CallForm, begin: Callable[[], None], kinds: Kinds
) -> Generator[None, None, bool]:
    """Read {key:value} with texts between the form's quotes. False: no object stands here."""
    yield from reader.blank()
    if not (yield from reader.next_is("{")):
        return False
    begin()
    known = longest_first([f"{key}:" for key in kinds])
    open: list[str] = []
    mark = ""  # that was just read
    while True:
        reader.forget()
        yield from reader.blank()
        keyed = open[-1:] == ["{"] and mark in ("{", ",")
        if (yield from reader.literal(form.quote)):
            mark = ""
            reader.add_arguments('"')
            if not (yield from reader.until((form.quote,), lambda text: escaped(reader, text))):
                return True
            reader.add_arguments('"')
        elif keyed and (yield from _loose_key(reader, form.quote, known if not open[1:] else ())):
            mark = ""
        elif (mark := (yield from reader.literal(*"{}[],:"))) in ("{", "["):
            open.append(mark)
            reader.add_arguments(mark)
        elif mark in ("}", "]"):
            open.pop()
            reader.add_arguments(mark)
            if not open:
                return True
        elif mark:
            reader.add_arguments(f"{mark} ")
        elif not (yield from _bare(reader)):
            return True


def _loose_key(reader: TextReader, quote: str, known: Sequence[str]) -> Generator[None, None, bool]:
    """Read a key up to its colon. False: none stands here, and nothing was read.

    known: keys with their colons, which may have any text in them. In others a colon is the end
    only if a value follows it.
    """
    start = reader.at
    if found := (yield from reader.literal(*known)):
        place = reader.at - 1
    elif (yield from reader.next_is("}")) or (place := (yield from _colon_at(reader, quote))) < 0:
        return False
    reader.at = place
    reader.add_arguments(dumps(found[:-1] or reader.text[start:place].strip()))
    return True


def _colon_at(reader: TextReader, quote: str) -> Generator[None, None, int]:
    """Return the place of the colon behind the key that stands here, or of the end of the answer;
    -1: no key stands here."""
    start = place = reader.at
    while True:
        place = reader.text.find(":", place, start + _LONGEST)
        if place >= 0:
            if (yield from _value_follows(reader, place + 1, quote)):
                return place
            place += 1
            continue
        place = len(reader.text)
        if place - start >= _LONGEST:
            return -1
        if reader.ended:
            return place if place > start else -1
        yield


def _value_follows(reader: TextReader, at: int, quote: str) -> Generator[None, None, bool]:
    """Return True if a value stands at a place, or may at the end of the answer."""
    while True:
        known = reader.text[at : at + _LONGEST]
        rest = known.lstrip()
        if rest.startswith((quote, "{", "[")):
            return True
        if not quote.startswith(rest) and (stop := _STOP.search(rest)):
            return stop[0] in ",}]"
        if reader.ended or len(known) == _LONGEST:
            return True
        yield


def _bare(reader: TextReader) -> Generator[None, None, bool]:
    """Read a number, a word or a text without quotes. False: the text ended."""
    found = yield from reader.matched(_BARE, _LONGEST)
    if found is None:
        return False
    reader.at = found.end()
    word = found[0].strip()
    plain = _NUMBER.match(word) or word in _WORDS
    reader.add_arguments(word if plain else literal_of(word) or dumps(word))
    return True
