"""Formats of a call's arguments, as a CallForm writes them. Pure.

The schema is enforced where a value is JSON. A text that stands between marks is any text up to the
closing one, or one of its enum.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, cast

from model_server.text.dialect import SchemaTypes, referred
from sax.call_form import Arguments, CallForm

Format = dict[str, Any]
_ANY: Format = {"type": "any_text"}
_KEY: Format = {"type": "regex", "pattern": r"[A-Za-z_][A-Za-z0-9_.-]{0,63}"}
_PLAIN = frozenset(
    {
        *("type", "properties", "required", "additionalProperties", "$defs", "definitions"),
        *("title", "description", "$schema", "$id", "$comment", "default", "examples"),
    }
)
_MOST_NESTED = 20_000  # values of objects within values that are written out, some repeatedly
_DEEPEST = 3  # values of any kind in one another, where texts have quotes of their own


def const(text: str) -> Format:
    return {"type": "const_string", "value": text}


def tag(begin: str, content: Format, end: str) -> Format:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def in_row(*parts: Format) -> Format:
    return {"type": "sequence", "elements": [p for p in parts if p != const("")] or [const("")]}


def either(*parts: Format) -> Format:
    return {"type": "or", "elements": list(parts)}


def _json(schema: Any) -> Format:
    return {"type": "json_schema", "json_schema": schema}


def _listed(one: Format, separator: str) -> Format:
    return {
        "type": "tags_with_separator",
        "tags": [tag("", one, "")],
        "separator": separator,
    }


def arguments_format(form: CallForm, schema: dict[str, Any]) -> Format:
    """Return the format of arguments that match the schema of an object."""
    parts = referred(schema, schema)
    match form.arguments:
        case Arguments.PAIRS:
            return _members(parts, _Pairs(form, schema), form.comma)
        case Arguments.PYTHON:
            return _members(parts, _Keywords(form, schema), form.comma or ", ")
        case Arguments.TAGS:
            return _members(parts, _Tags(form, schema), "")
        case Arguments.LOOSE:
            return _Loose(form, schema).object(parts)
        case _:
            return _json(schema)


def _members(schema: Mapping[str, Any], style: _Style, separator: str) -> Format:
    """Return the pairs of an object: required ones, and others or none of them."""
    properties, needed = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict) or not schema.keys() <= _PLAIN:
        if schema.get("additionalProperties") is False and schema.keys() <= _PLAIN:
            return const("")
        return _listed(style.any_pair(), separator)
    known = cast("dict[str, Any]", properties)
    names = cast("list[Any]", needed) if isinstance(needed, list) else []
    required = [name for name in names if isinstance(name, str)]
    other = schema.get("additionalProperties", {})
    others = {} if other is False else {name: other for name in required if name not in known}
    pairs = {key: style.pair(key, value) for key, value in {**known, **others}.items()}
    if not separator:
        return in_row(
            *(pair if key in required else either(pair, const("")) for key, pair in pairs.items())
        )
    return _separated(pairs, [key for key in pairs if key in required], separator)


def _separated(pairs: Mapping[str, Format], required: list[str], separator: str) -> Format:
    """Return pairs in their order, with a separator before each but the first one written."""
    behind = {
        key: in_row(const(separator), pair)
        if key in required
        else either(in_row(const(separator), pair), const(""))
        for key, pair in pairs.items()
    }
    names = list(pairs)
    firsts = names.index(required[0]) + 1 if required else len(names)
    begun = [
        in_row(pairs[name], *(behind[other] for other in names[place + 1 :]))
        for place, name in enumerate(names[:firsts])
    ]
    options = begun if required else [*begun, const("")]
    return options[0] if len(options) == 1 else either(*options)


class _Style(ABC):
    """Makes the format of a key with its value, as one form of calls writes it."""

    def __init__(self, form: CallForm, root: dict[str, Any]) -> None:
        """root: the schema that references point into."""
        self.form = form
        self.root = root
        self.types = SchemaTypes(root)
        self.left = [_MOST_NESTED]
        self._definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}

    @abstractmethod
    def pair(self, key: str, schema: Any) -> Format: ...

    @abstractmethod
    def any_pair(self) -> Format:
        """Return any key with any value."""

    def json(self, schema: Any) -> Format:
        """Return a value as JSON, or a word of Python for one that is true, false or null."""
        types = self.types.of(schema)
        if self.form.python_words and types <= {"boolean", "null"} and isinstance(schema, dict):
            words = {"boolean": ("True", "False", "true", "false"), "null": ("None", "null")}
            if not {"enum", "const"} & cast("dict[str, Any]", schema).keys():
                return either(*(const(word) for kind in sorted(types) for word in words[kind]))
        if not isinstance(schema, dict):
            return _json(schema)
        parts = cast("dict[str, Any]", schema)
        return _json(parts | self._definitions if '"$ref"' in json.dumps(parts) else parts)

    def referred(self, schema: Any) -> dict[str, Any]:
        """Return the schema that one stands for; {} for what is none."""
        parts = cast("dict[str, Any]", schema) if isinstance(schema, dict) else {}
        return referred(self.root, parts)

    def bounded(self, parts: Mapping[str, Any], values: int) -> Mapping[str, Any]:
        """Return the schema of an object within a value, of which so many values are written out;
        {}, any object, once there were too many: a schema may refer to itself in many places."""
        self.left[0] -= values
        return parts if self.left[0] >= 0 else {}

    def texts(self, schema: Any) -> list[str]:
        """Return the texts of an enum of nothing else."""
        parts = self.referred(schema)
        given: Any = [parts["const"]] if "const" in parts else parts.get("enum")
        values = cast("list[Any]", given) if isinstance(given, list) else []
        return [str(v) for v in values] if all(isinstance(v, str) for v in values) else []


def _size(parts: Mapping[str, Any]) -> int:
    properties = parts.get("properties")
    return len(cast("dict[str, Any]", properties)) if isinstance(properties, dict) else 0


class _Pairs(_Style):
    def pair(self, key: str, schema: Any) -> Format:
        form, types = self.form, self.types.of(schema)
        begin = form.pair + key
        if form.quoted:
            return tag(begin + form.behind_key("string"), self.json(schema), form.close)
        options: list[Format] = []
        if "string" in types:
            options.append(self._text(begin + form.behind_key("string"), schema))
        others = sorted(types - {"string"})
        if len(form.colon) > 1 or "string" not in types:
            options += self._typed(begin, schema, others)
        return options[0] if len(options) == 1 else either(*options)

    def _text(self, begin: str, schema: Any) -> Format:
        if known := self.texts(schema):
            return tag(begin, either(*map(const, known)), self.form.close)
        return tag(begin, _ANY, self.form.close)

    def _typed(self, begin: str, schema: Any, types: list[str]) -> list[Format]:
        """Return the values that are no texts, by what stands before them."""
        colons = {kind: self.form.behind_key(kind) for kind in types}
        if len(set(colons.values())) == 1 and self.types.of(schema) == set(types):
            return [tag(begin + colons[types[0]], self.json(schema), self.form.close)]
        return [
            tag(begin + colon, self.json({"allOf": [schema, {"type": kind}]}), self.form.close)
            for kind, colon in colons.items()
        ]

    def any_pair(self) -> Format:
        text = tag(self.form.behind_key("string"), _ANY, self.form.close)
        return in_row(const(self.form.pair), _KEY, text)


class _Tags(_Style):
    def __init__(self, form: CallForm, root: dict[str, Any], depth: int = 0) -> None:
        super().__init__(form, root)
        self._depth = depth

    def pair(self, key: str, schema: Any) -> Format:
        options = [self._tag(key, content) for content in self._values(schema)]
        return options[0] if len(options) == 1 else either(*options)

    def any_pair(self) -> Format:
        colon = self.form.behind_key("")
        text = tag(colon, _ANY, self.form.close)
        return in_row(const(self.form.pair), _KEY, text, _KEY, const(colon))

    def _tag(self, key: str, content: Format) -> Format:
        form, colon = self.form, self.form.behind_key("")
        return tag(form.pair + key + colon, content, form.close + key + colon)

    def _values(self, schema: Any) -> list[Format]:
        types = self.types.of(schema)
        parts = self.referred(schema)
        options: list[Format] = []
        if "string" in types:
            known = self.texts(schema)
            options.append(either(*map(const, known)) if known else _ANY)
        if self._depth < _DEEPEST:
            inner = _Tags(self.form, self.root, self._depth + 1)
            inner.types, inner.left = self.types, self.left
            if "array" in types:
                item = inner.pair(self.form.item, parts.get("items", {}))
                options.append(_listed(item, ""))
            if "object" in types:
                options.append(_members(self.bounded(parts, 1 + _size(parts)), inner, ""))
        if scalars := sorted(types & {"number", "boolean", "null"}):
            only = types == set(scalars)
            options.append(self.json(schema if only else {"type": scalars}))
        return options or [_ANY]


class _Keywords(_Style):
    def pair(self, key: str, schema: Any) -> Format:
        return in_row(const(f"{key}="), self.json(schema))

    def any_pair(self) -> Format:
        return in_row(_KEY, const("="), _json({}))


class _Loose(_Style):
    def __init__(self, form: CallForm, root: dict[str, Any], depth: int = 0) -> None:
        super().__init__(form, root)
        self._depth = depth
        self._copies = 1  # of an object's format, in those around it

    def object(self, schema: Mapping[str, Any]) -> Format:
        size = 1 + _size(schema)
        if self._depth:  # each value is written out behind every one that may come first
            schema = self.bounded(schema, self._copies * size * (size + 1) // 2)
        inner = self._inner(self._copies * size)
        return in_row(const("{"), _members(schema, inner, ","), const("}"))

    def _inner(self, copies: int) -> _Loose:
        inner = _Loose(self.form, self.root, self._depth + 1)
        inner.types, inner.left, inner._copies = self.types, self.left, copies
        return inner

    def pair(self, key: str, schema: Any) -> Format:
        return in_row(const(f"{key}:"), self._value(schema))

    def any_pair(self) -> Format:
        return in_row(_KEY, const(":"), self._value({}))

    def _value(self, schema: Any) -> Format:
        types = self.types.of(schema)
        parts = self.referred(schema)
        deep = self._depth >= _DEEPEST
        options = [
            *([self._text(schema)] if "string" in types else []),
            *([self._array(parts)] if "array" in types and not deep else []),
            *([self.object(parts)] if "object" in types and not deep else []),
        ]
        if scalars := sorted(types & {"number", "boolean", "null"}):
            only = types == set(scalars)
            plain = schema if only else {"type": scalars}
            if not only and isinstance(parts.get("type"), list) and "integer" in parts["type"]:
                plain = {"type": [*(set(scalars) - {"number"}), "integer"]}
            options.append(self.json(plain))
        return options[0] if len(options) == 1 else either(*options or [self._text({})])

    def _text(self, schema: Any) -> Format:
        quote = self.form.quote
        if known := self.texts(schema):
            return either(*(const(quote + text + quote) for text in known))
        return tag(quote, _ANY, quote)

    def _array(self, parts: Mapping[str, Any]) -> Format:
        items = self._inner(self._copies)._value(parts.get("items", {}))
        return in_row(const("["), _listed(items, ","), const("]"))
