"""Arguments that are not written as one JSON object: pairs of keys and values between marks, and
objects whose texts stand between quotes of their own. Both are streamed as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Generator, Mapping

from sax.call_form import CallForm
from sax.dialects.python_call import literal_of
from sax.dialects.text_reader import TextReader

_SECTION = "<![CDATA["
# By parameter (within tags by path, as in at.x and tags.item), the JSON types that a value may
# have; one that is missing may have any.
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
    firsts = tuple({colon.split()[0] for colon in form.colon.values()})
    longest_first = sorted(kinds, key=len, reverse=True)
    marked = [key for key in longest_first if any(first in key for first in firsts)]
    known = yield from reader.literal(*(key + first for key in marked for first in firsts))
    if known:
        return next(key for key in marked if known.removeprefix(key) in firsts)
    key: list[str] = []
    if not (yield from reader.until(firsts, key.append)):
        return None
    name = "".join(key)  # without white space that is the form's
    name = name.lstrip() if form.pair[-1:].isspace() else name
    return name.rstrip() if any(colon[0].isspace() for colon in form.colon.values()) else name


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


_BARE = re.compile(r"[^{}\[\],:]+")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?\Z")
_WORDS = {"true": "true", "false": "false", "null": "null"}
_LONGEST = 4096  # characters of a key, a number or a word


def read_loose(
    reader: TextReader, form: CallForm, begin: Callable[[], None]
) -> Generator[None, None, bool]:
    """Read {key:value} with texts between the form's quotes. False: no object stands here."""
    yield from reader.blank()
    if not (yield from reader.next_is("{")):
        return False
    begin()
    open: list[str] = []
    while True:
        reader.forget()
        yield from reader.blank()
        if (yield from reader.literal(form.quote)):
            reader.add_arguments('"')
            if not (yield from reader.until((form.quote,), lambda text: escaped(reader, text))):
                return True
            reader.add_arguments('"')
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


def _bare(reader: TextReader) -> Generator[None, None, bool]:
    """Read a key, a number or a word. False: the text ended."""
    found = yield from reader.matched(_BARE, _LONGEST)
    if found is None:
        return False
    reader.at = found.end()
    word = found[0].strip()
    is_key = yield from reader.next_is(":")
    plain = _NUMBER.match(word) or word in _WORDS
    if plain and not is_key:
        reader.add_arguments(word)
    else:
        reader.add_arguments((not is_key and literal_of(word)) or dumps(word))
    return True
