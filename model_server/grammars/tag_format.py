"""Converts the newer kind of structural tag, a tree of formats, to a grammar in Lark.

A format is an object with a `type`. Text that may be anything has no end of its own: `any_text` and
`triggered_tags` must come last, or be the content of a tag (`any_text` only) whose end closes them.
Errors name the part, as a path from `format` on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from llguidance import regex_to_lark
from llguidance.gbnf_to_lark import any_to_lark

from sax.errors import InvalidRequest

_TEXT = r"/(.|\n)*/"
_DEEPEST = 32  # formats in one another


class _Spot(NamedTuple):
    """The place of a format in the tree."""

    path: str
    last: bool  # nothing follows it
    depth: int = 0

    def at(self, step: str, *, last: bool) -> _Spot:
        if self.depth == _DEEPEST:
            raise wrong(self.path, f"formats are nested deeper than {_DEEPEST}")
        return _Spot(f"{self.path}.{step}", last, self.depth + 1)


def wrong(path: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"structural_tag.{path}: {why}", param="structural_tag")


class TagFormats:
    """One tree of formats. Raises InvalidRequest for what it cannot convert."""

    def __init__(
        self, specials: Mapping[str, int], schema: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> None:
        """specials: control tokens by their text. schema: checks and completes a JSON Schema."""
        marked = sorted(filter(None, specials), key=len, reverse=True)
        marks = "|".join(map(re.escape, marked))
        self._ids = specials
        self._specials = re.compile(f"({marks})") if marks else None
        self._schema = schema
        self._rules: list[str] = []
        self._others: list[dict[str, str]] = []  # grammars that a format brings

    def grammar(self, tree: Any) -> str:
        """Return the grammar in llguidance's own form."""
        start = self._rule(tree, _Spot("format", last=True))
        lark = "\n".join((f"start: {start}", *self._rules, f"TAG_TEXT: {_TEXT}", ""))
        return json.dumps({"grammars": [{"name": "tags", "lark_grammar": lark}, *self._others]})

    def _rule(self, tree: Any, place: _Spot) -> str:
        """Return the name of a rule for this format."""
        if not isinstance(tree, dict):
            raise wrong(place.path, "it must be an object with a type")
        parts = cast("dict[str, Any]", tree)
        if (kind := parts.get("type")) not in _READERS:
            known = ", ".join(sorted(_READERS))
            raise wrong(place.path, f"its type is {kind!r}: give one of {known}")
        read, fields = _READERS[kind]
        unknown = sorted(parts.keys() - {"type", *fields})
        if unknown:
            raise wrong(f"{place.path}.{unknown[0]}", f"{kind} has no such field that works here")
        return self._named(read(self, parts, place))

    def _named(self, body: str, kind: str = "") -> str:
        name = f"part_{len(self._rules)}"
        self._rules.append(f"{name}{kind}: {body}")
        return name

    def _literal(self, value: Any, path: str) -> str:
        """Return a text in Lark, its control tokens as such."""
        if not isinstance(value, str):
            raise wrong(path, "it must be a text")
        pieces = self._specials.split(value) if self._specials else [value]
        quoted = [
            f"<[{self._ids[piece]}]>" if place % 2 else json.dumps(piece, ensure_ascii=False)
            for place, piece in enumerate(pieces)
            if piece
        ]
        return " ".join(quoted) or '""'

    def _const_string(self, parts: Mapping[str, Any], place: _Spot) -> str:
        return self._literal(parts.get("value"), f"{place.path}.value")

    def _json_schema(self, parts: Mapping[str, Any], place: _Spot) -> str:
        schema = parts.get("json_schema")
        if not isinstance(schema, dict):
            raise wrong(f"{place.path}.json_schema", "it must be a JSON Schema that is an object")
        return "%json " + json.dumps(self._schema(cast("dict[str, Any]", schema)))

    def _regex(self, parts: Mapping[str, Any], place: _Spot) -> str:
        if not isinstance(pattern := parts.get("pattern"), str):
            raise wrong(f"{place.path}.pattern", "it must be a text")
        return f"/{regex_to_lark(pattern)}/"

    def _grammar(self, parts: Mapping[str, Any], place: _Spot) -> str:
        if not isinstance(source := parts.get("grammar"), str):
            raise wrong(f"{place.path}.grammar", "it must be a text")
        name = f"other_{len(self._others)}"
        self._others.append({"name": name, "lark_grammar": any_to_lark(source)})
        return f"@{name}"

    def _any_text(self, parts: Mapping[str, Any], place: _Spot) -> str:
        if not place.last:
            raise wrong(place.path, "any_text has no end here: put it last, or into a tag")
        return "TAG_TEXT"

    def _sequence(self, parts: Mapping[str, Any], place: _Spot) -> str:
        elements = _elements(parts, "elements", place)
        end = len(elements) - 1
        return " ".join(
            self._rule(each, place.at(f"elements[{n}]", last=place.last and n == end))
            for n, each in enumerate(elements)
        )

    def _or(self, parts: Mapping[str, Any], place: _Spot) -> str:
        elements = _elements(parts, "elements", place)
        return " | ".join(
            self._rule(each, place.at(f"elements[{n}]", last=place.last))
            for n, each in enumerate(elements)
        )

    def _tag(self, parts: Mapping[str, Any], place: _Spot) -> str:
        begin = self._literal(parts.get("begin"), f"{place.path}.begin")
        return f"{begin} {self._closed(parts, place)}"

    def _closed(self, parts: Mapping[str, Any], place: _Spot) -> str:
        """Return the content of a tag and its end."""
        end = parts.get("end", "")
        literal = self._literal(end, f"{place.path}.end")
        content = parts.get("content")
        if end and content == {"type": "any_text"}:
            # No text holds a control token, so that the first one ends it.
            return self._named(f"TAG_TEXT {literal}", "[lazy]" if literal[0] == '"' else "")
        inner = self._rule(content, place.at("content", last=place.last and not end))
        return f"{inner} {literal}"

    def _triggered_tags(self, parts: Mapping[str, Any], place: _Spot) -> str:
        if not place.last:
            raise wrong(place.path, "triggered_tags has no end here: put it last")
        triggers = [each for each in _elements(parts, "triggers", place) if isinstance(each, str)]
        tags = _tags(parts, place)
        once = bool(parts.get("stop_after_first"))
        options = " | ".join(
            self._triggered(tag, triggers, place.at(f"tags[{n}]", last=once))
            for n, tag in enumerate(tags)
        )
        if once:
            return options if parts.get("at_least_one") else f"{options} | TAG_TEXT"
        return f"({options}){'+' if parts.get('at_least_one') else '*'} TAG_TEXT"

    def _triggered(self, tag: Mapping[str, Any], triggers: Sequence[str], place: _Spot) -> str:
        begin = tag.get("begin")
        fitting = [each for each in triggers if isinstance(begin, str) and begin.startswith(each)]
        if not isinstance(begin, str) or not fitting or not fitting[0]:
            raise wrong(f"{place.path}.begin", f"no trigger begins {begin!r}")
        trigger, rest = fitting[0], begin[len(fitting[0]) :]
        literal = self._literal(trigger, f"{place.path}.begin")
        head = f"TAG_TEXT {literal}"
        if literal.startswith('"'):
            head = self._named(head, "[lazy]")
        return self._named(f"{head} {self._literal(rest, place.path)} {self._closed(tag, place)}")

    def _tags_with_separator(self, parts: Mapping[str, Any], place: _Spot) -> str:
        separator = self._literal(parts.get("separator"), f"{place.path}.separator")
        one = self._named(
            " | ".join(
                self._rule(tag, place.at(f"tags[{n}]", last=False))
                for n, tag in enumerate(_tags(parts, place))
            )
        )
        every = one if parts.get("stop_after_first") else f"{one} ({separator} {one})*"
        return every if parts.get("at_least_one") else f"({every})?"


def _tags(parts: Mapping[str, Any], place: _Spot) -> list[dict[str, Any]]:
    tags = _elements(parts, "tags", place)
    for number, tag in enumerate(tags):
        if not isinstance(tag, dict) or cast("dict[str, Any]", tag).get("type") != "tag":
            raise wrong(f"{place.path}.tags[{number}]", "it must be a format of the type tag")
    return tags


def _elements(parts: Mapping[str, Any], name: str, place: _Spot) -> list[Any]:
    value = parts.get(name)
    if not isinstance(value, list) or not value:
        raise wrong(f"{place.path}.{name}", "it must be a list of at least one")
    return cast("list[Any]", value)


_Read = Callable[[TagFormats, Mapping[str, Any], _Spot], str]
_READERS: dict[str, tuple[_Read, tuple[str, ...]]] = {
    "const_string": (TagFormats._const_string, ("value",)),
    "json_schema": (TagFormats._json_schema, ("json_schema",)),
    "regex": (TagFormats._regex, ("pattern",)),
    "grammar": (TagFormats._grammar, ("grammar",)),
    "any_text": (TagFormats._any_text, ()),
    "sequence": (TagFormats._sequence, ("elements",)),
    "or": (TagFormats._or, ("elements",)),
    "tag": (TagFormats._tag, ("begin", "content", "end")),
    "triggered_tags": (
        TagFormats._triggered_tags,
        ("triggers", "tags", "at_least_one", "stop_after_first"),
    ),
    "tags_with_separator": (
        TagFormats._tags_with_separator,
        ("tags", "separator", "at_least_one", "stop_after_first"),
    ),
}
