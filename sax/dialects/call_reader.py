"""Reads calls of tools as a CallForm says that the model writes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from sax.call_form import FUNCTIONS_ID, GEMMA, ID, INDEX, NAME, Arguments, CallForm, IdForm
from sax.dialects.bare_values import (
    JSON_TYPES,
    Kinds,
    at_tail,
    dumps,
    escaped,
    json_of,
    longest_first,
    read_loose,
    read_pairs,
)
from sax.dialects.call_object import call_object
from sax.dialects.python_call import read_python
from sax.dialects.text_reader import Reading, TextReader

_SLOTS = re.compile(f"([{NAME}{ID}{INDEX}])")
_ID, _NUMBER = re.compile(r"[\w:.+/=-]+"), re.compile(r"\d+")
_LONGEST = 128  # characters of an id
_FENCE = "```tool_code"  # Gemma 3
_DEEPEST = 64  # levels that are read; a value below them is a text
_Found = Generator[None, None, bool]


def with_variants(form: CallForm) -> tuple[CallForm, ...]:
    """Return the form, and others that models write where nothing marks their calls."""
    if form.mark:
        return (form,)
    if form.arguments == Arguments.PYTHON:
        fenced = replace(form, mark=_FENCE, begin=f"{_FENCE}\n[", end="]\n```")
        return (form, fenced, replace(fenced, begin=f"{_FENCE}\n", end="\n```"))
    if form.arguments == Arguments.OBJECT and not form.begin:
        tags = ("<|python_tag|>", "<|python_start|>")  # Llama 3 and 4
        listed = replace(GEMMA, mark=tags[1], begin=f"{tags[1]}[")
        return (form, *(replace(form, mark=tag, begin=tag) for tag in tags), GEMMA, listed)
    return (form,)


def read_calls(
    reader: TextReader, *, forms: Sequence[CallForm], kinds: Mapping[str, Kinds]
) -> Reading:
    """Read content and calls in any of the forms. kinds: by tool, the types of its parameters."""
    read = partial(_calls, reader, kinds=kinds)
    if not (yield from _first(reader, [form for form in forms if not form.mark], read)):
        reader.at = 0
    marks = tuple(dict.fromkeys(form.mark for form in forms if form.mark))
    while mark := (yield from reader.until(marks)):
        if not (yield from _first(reader, [form for form in forms if form.mark == mark], read)):
            reader.say(mark + reader.text[: reader.at])
            reader.forget()


_Read = Callable[[CallForm], Generator[None, None, bool]]


def _first(
    reader: TextReader, forms: Sequence[CallForm], read: _Read
) -> Generator[None, None, bool]:
    """Read calls in the first form that has one here. False: none has, and what was looked at is
    behind the place."""
    furthest = 0
    for form in forms:
        reader.at = 0
        if (yield from read(form)):
            return True
        furthest = max(furthest, reader.at)
    reader.at = furthest
    return False


def _calls(
    reader: TextReader, form: CallForm, *, kinds: Mapping[str, Kinds]
) -> Generator[None, None, bool]:
    """Read calls behind their mark. False: there is none."""
    opened = form.opening.removeprefix(form.mark)
    if not (yield from _call(reader, form, opened, kinds)):
        return False
    while True:
        yield from reader.spaced(form.tail.removeprefix(_read_with(form)))
        reader.forget()
        if form.end.strip() and (yield from reader.spaced(form.end)):
            reader.forget()
            return True
        yield from reader.spaced(form.between)
        if not (yield from _call(reader, form, form.head, kinds)):
            reader.at = 0
            return True


def _read_with(form: CallForm) -> str:
    """Return what of the tail is read with the arguments."""
    if form.arguments == Arguments.OBJECT:
        return form.tail[: len(form.tail) - len(form.tail.lstrip(" \n\t}"))]
    return ")" if form.arguments == Arguments.PYTHON else ""


def _call(
    reader: TextReader, form: CallForm, head: str, kinds: Mapping[str, Kinds]
) -> Generator[None, None, bool]:
    """Read one call behind what the head begins with. False: there is none, and nothing but
    `reader.at` has changed."""
    if form.arguments == Arguments.OBJECT:
        if not (yield from reader.spaced(head.partition("{")[0])):
            return False
        yield from reader.blank()
        return (yield from call_object(reader, form.name_key, form.arguments_key))
    found = yield from _head(reader, head)
    if found is None:
        return False
    name, id = found
    if form.ids == IdForm.FUNCTIONS:
        id = FUNCTIONS_ID.replace(NAME, name).replace(INDEX, id)
    begin = partial(reader.begin_call, name, id)
    match form.arguments:
        case Arguments.PYTHON:
            return (yield from read_python(reader, name, id, kinds.get(name, ())))
        case Arguments.PAIRS:
            made = yield from read_pairs(reader, form, begin, kinds.get(name, {}))
        case Arguments.TAGS:
            made = yield from _read_tags(reader, form, begin, kinds.get(name, {}))
        case Arguments.LOOSE:
            made = yield from read_loose(reader, form, begin, kinds.get(name, {}))
        case _:
            made = yield from _json(reader, begin)
    if made:
        reader.end_call()
    return made


def _json(reader: TextReader, begin: Callable[[], None]) -> Generator[None, None, bool]:
    yield from reader.blank()
    if not (yield from reader.next_is("{")):
        return False
    begin()
    yield from reader.arguments()
    return True


def _head(reader: TextReader, head: str) -> Generator[None, None, tuple[str, str] | None]:
    """Read the texts before the arguments, and return the name and the id or number ("": none) in
    them; None: they do not stand here."""
    name = id = ""
    for part in _SLOTS.split(head):
        if part in (NAME, ID, INDEX):
            yield from reader.blank()
        if part == NAME:
            read = yield from reader.name()
            if not read or (name and read != name):
                return None
            name = read
        elif part in (ID, INDEX):
            found = yield from reader.matched(_ID if part == ID else _NUMBER, _LONGEST)
            if found is None:
                return None
            reader.at = found.end()
            id = found[0]
        elif not (yield from reader.spaced(part)):
            return None
    return name, id


def _read_tags(
    reader: TextReader, form: CallForm, begin: Callable[[], None], kinds: Kinds
) -> _Found:
    """Read the tags that stand here. False: there are none, nor the end of a call, and nothing was
    read.

    What a closing mark names is not compared with its opening: the marks' own token stands in no
    value."""
    colon = form.behind_key("")
    marked = longest_first([path for path in kinds if colon in path])
    tags = _TagReading(reader, form, kinds, marked)
    first = yield from tags.opens()
    if not first and not (yield from at_tail(reader, form.tail)):
        return False
    begin()
    yield from tags.object("", (yield from tags.key("")) if first else None, 0)
    return True


@dataclass(frozen=True, slots=True)
class _TagReading:
    reader: TextReader
    form: CallForm
    kinds: Kinds
    marked: Sequence[str]  # the paths in which a key has what ends keys, the longest first

    def opens(self) -> _Found:
        """Read how a tag begins. False: none does here, and nothing was read."""
        reader, start = self.reader, self.reader.at
        if not (yield from reader.spaced(self.form.pair)):
            return False
        slash = self.form.close.removeprefix(self.form.pair)
        if slash != self.form.close and (yield from reader.literal(slash)):
            reader.at = start
            return False
        return True

    def key(self, path: str) -> Generator[None, None, str | None]:
        """Read a key of the object of this path; None: the text ended first."""
        colon, below = self.form.behind_key(""), f"{path}." if path else ""
        known = [each.removeprefix(below) for each in self.marked if each.startswith(below)]
        if found := (yield from self.reader.literal(*(key + colon for key in known))):
            return found.removesuffix(colon)
        parts: list[str] = []
        found = yield from self.reader.until((colon,), parts.append)
        return "".join(parts) if found else None

    def closes(self, key: str) -> _Found:
        """Read the closing mark of a tag. False: the text ended first."""
        if not (yield from self.reader.until((self.form.close,), lambda text: None)):
            return False
        return (yield from self.behind_close(key))

    def behind_close(self, key: str) -> _Found:
        """Read what a closing mark names, up to its end. False: the text ended first."""
        colon = self.form.behind_key("")
        if colon in key and (yield from self.reader.literal(key + colon)):
            return True
        return bool((yield from self.reader.until((colon,), lambda text: None)))

    def object(self, path: str, key: str | None, depth: int) -> _Found:
        """Read members from behind the first key, if there is one. False: the text ended first."""
        self.reader.add_arguments("{")
        separator = ""
        while key is not None:
            self.reader.add_arguments(f"{separator}{dumps(key)}: ")
            separator = ", "
            if not (yield from self.value(f"{path}.{key}" if path else key, key, depth + 1)):
                return False
            key = (yield from self.key(path)) if (yield from self.opens()) else None
        self.reader.add_arguments("}")
        return True

    def list(self, path: str, key: str | None, depth: int) -> _Found:
        """Read values from behind the first one's key. False: the text ended first."""
        self.reader.add_arguments("[")
        while True:
            item = f"{path}.{self.form.item}"
            if key is None or not (yield from self.value(item, key, depth + 1)):
                return False
            if not (yield from self.opens()):
                break
            self.reader.add_arguments(", ")
            key = yield from self.key(path)
        self.reader.add_arguments("]")
        return True

    def value(self, path: str, key: str, depth: int) -> _Found:
        """Read a value and what closes its tag. False: the text ended first."""
        types = set(self.kinds.get(path, JSON_TYPES.values()))
        nested = types & {"array", "object"} and depth < _DEEPEST
        if nested and (yield from self.opens()):
            first = yield from self.key(path)
            if "array" in types and (first == self.form.item or "object" not in types):
                whole = yield from self.list(path, first, depth)
            else:
                whole = yield from self.object(path, first, depth)
            return whole and (yield from self.closes(key))
        if types == {"string"}:
            return (yield from self._text(key))
        parts: list[str] = []
        found = yield from self.reader.until((self.form.close,), parts.append)
        self.reader.add_arguments(_bare("".join(parts), types))
        return bool(found) and (yield from self.behind_close(key))

    def _text(self, key: str) -> _Found:
        self.reader.add_arguments('"')
        write = self.reader
        if not (yield from write.until((self.form.close,), lambda text: escaped(write, text))):
            return False
        self.reader.add_arguments('"')
        return (yield from self.behind_close(key))


def _bare(text: str, types: Collection[str]) -> str:
    """Return a value without tags in it as JSON: of nothing, an empty one of its type."""
    if not text.strip() and "string" not in types:
        empty = {"array": "[]", "object": "{}"}
        return next((made for kind, made in empty.items() if kind in types), '""')
    return json_of(text, types)
