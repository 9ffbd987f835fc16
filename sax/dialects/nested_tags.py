"""Arguments as tags: each key around its value, and objects and lists as tags within a tag.

They are streamed as JSON. What a closing mark names is not compared with its opening: the marks'
own token stands in no value.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass

from sax.call_form import CallForm
from sax.dialects.bare_values import JSON_TYPES, at_tail, dumps, escaped, json_of
from sax.dialects.text_reader import TextReader

# By path, as in at.x and tags.item, the JSON types of its value; one that is missing may have any.
Kinds = Mapping[str, Collection[str]]
_DEEPEST = 64  # levels that are read; a value below them is a text
_Found = Generator[None, None, bool]


def read_tags(
    reader: TextReader, form: CallForm, begin: Callable[[], None], kinds: Kinds
) -> _Found:
    """Read the tags that stand here. False: there are none, nor the end of a call, and nothing was
    read."""
    tags = _TagReading(reader, form, kinds)
    first = yield from tags.opens()
    if not first and not (yield from at_tail(reader, form.tail)):
        return False
    begin()
    yield from tags.object("", (yield from tags.key()) if first else None, 0)
    return True


@dataclass(frozen=True, slots=True)
class _TagReading:
    reader: TextReader
    form: CallForm
    kinds: Kinds

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

    def key(self) -> Generator[None, None, str | None]:
        """Read a key; None: the text ended first."""
        parts: list[str] = []
        found = yield from self.reader.until((self.form.behind_key(""),), parts.append)
        return "".join(parts) if found else None

    def closes(self) -> _Found:
        """Read the closing mark of a tag. False: the text ended first."""
        if not (yield from self.reader.until((self.form.close,), lambda text: None)):
            return False
        return (yield from self.key()) is not None

    def object(self, path: str, key: str | None, depth: int) -> _Found:
        """Read members from behind the first key, if there is one. False: the text ended first."""
        self.reader.add_arguments("{")
        separator = ""
        while key is not None:
            self.reader.add_arguments(f"{separator}{dumps(key)}: ")
            separator = ", "
            if not (yield from self.value(f"{path}.{key}" if path else key, depth + 1)):
                return False
            key = (yield from self.key()) if (yield from self.opens()) else None
        self.reader.add_arguments("}")
        return True

    def list(self, path: str, depth: int) -> _Found:
        """Read values from behind the first one's key. False: the text ended first."""
        self.reader.add_arguments("[")
        while True:
            if not (yield from self.value(f"{path}.{self.form.item}", depth + 1)):
                return False
            if not (yield from self.opens()):
                break
            self.reader.add_arguments(", ")
            yield from self.key()
        self.reader.add_arguments("]")
        return True

    def value(self, path: str, depth: int) -> _Found:
        """Read a value and what closes its tag. False: the text ended first."""
        types = set(self.kinds.get(path, JSON_TYPES.values()))
        nested = types & {"array", "object"} and depth < _DEEPEST
        if nested and (yield from self.opens()):
            key = yield from self.key()
            if "array" in types and (key == self.form.item or "object" not in types):
                whole = yield from self.list(path, depth)
            else:
                whole = yield from self.object(path, key, depth)
            return whole and (yield from self.closes())
        if types == {"string"}:
            return (yield from self._text())
        parts: list[str] = []
        found = yield from self.reader.until((self.form.close,), parts.append)
        self.reader.add_arguments(_bare("".join(parts), types))
        return bool(found) and (yield from self.key()) is not None

    def _text(self) -> _Found:
        self.reader.add_arguments('"')
        write = self.reader
        if not (yield from write.until((self.form.close,), lambda text: escaped(write, text))):
            return False
        self.reader.add_arguments('"')
        return (yield from self.key()) is not None


def _bare(text: str, types: Collection[str]) -> str:
    """Return a value without tags in it as JSON: of nothing, an empty one of its type."""
    if not text.strip() and "string" not in types:
        empty = {"array": "[]", "object": "{}"}
        return next((made for kind, made in empty.items() if kind in types), '""')
    return json_of(text, types)
