"""Makes the structural tag under which an answer is a call of tools, as the model's dialect writes
calls and their arguments. Pure.

The schema is enforced where a value is JSON. A text that stands between marks is any text up to the
closing one, or one of its enum.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, cast

from msgspec.structs import replace

from model_server.text.dialect import THINK, AnswerDialect, SchemaTypes, referred
from sax.call_form import ID, INDEX, NAME, Arguments, CallForm, IdForm
from sax.chat import ChatOptions, ReasoningParser, Tool, ToolChoice, ToolParser
from sax.errors import InvalidRequest, UnsupportedParameter

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


_BLANK: Format = {"type": "regex", "pattern": r"[ \n]{0,4}"}
_ANYTHING = {"type": "object"}
_ANALYSIS, _FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
_CHANNELS = CallForm(
    Arguments.JSON,
    head=f"<|channel|>commentary to=functions.{NAME} <|constrain|>json<|message|>",
    one=True,
)


def call_format(
    dialect: AnswerDialect, chat: ChatOptions, other: Format | None, *, reasoning_open: bool
) -> Format | None:
    """Return the format of an answer that calls tools as the chat asks; None: nothing is asked.

    other: format of an answer without a call, if there is one. reasoning_open: the answer begins
    inside the reasoning. Raises InvalidRequest and UnsupportedParameter, naming the field.
    """
    if not chat.may_call:
        return None
    if dialect.tools == ToolParser.NONE:
        raise UnsupportedParameter(
            "tools are not supported: nothing tells how this model writes calls. Publish it with "
            'the override TOOL_PARSER, or send tool_choice "none"',
            param="tools",
        )
    strict = any(tool.strict for tool in chat.tools)
    if not (chat.must_call or chat.allowed_tools or strict or other):
        return None
    answer = _answer(dialect, chat, other)
    if dialect.reasoning is ReasoningParser.THINK:
        return after_thoughts(answer, dialect.thoughts, reasoning_open=reasoning_open)
    return answer


def after_thoughts(
    answer: Format, thoughts: tuple[str, str] = THINK, *, reasoning_open: bool
) -> Format:
    """Return the format of an answer that reasons first: it must if it begins inside the
    reasoning, else it may. thoughts: the marks around reasoning."""
    begin, end = thoughts
    reasoned = in_row(tag("" if reasoning_open else begin, _ANY, end), _BLANK, answer)
    return reasoned if reasoning_open else either(answer, reasoned)


def _answer(dialect: AnswerDialect, chat: ChatOptions, other: Format | None) -> Format:
    if dialect.calls is None:
        return _harmony(_calls(_CHANNELS, chat), None if chat.must_call else other or _ANY)
    form = _from_mark(dialect.calls)
    calls = _calls(form, chat)
    forced = in_row(const(form.begin), calls, const(form.end))
    if chat.must_call:
        return forced
    if other is not None:
        return either(forced, other)
    if form.mark:
        content = in_row(const(form.begin.removeprefix(form.mark)), calls)
        return {
            "type": "triggered_tags",
            "triggers": [form.mark],
            "tags": [tag(form.mark, content, form.end)],
            "stop_after_first": True,
        }
    # Text that begins as a call does is one.
    first = re.escape((form.begin + form.head)[0])
    return either(forced, {"type": "regex", "pattern": rf"([^{first}](.|\n)*)?"})


def _from_mark(form: CallForm) -> CallForm:
    """Return the form with the mark in what begins all calls, and no white space before it."""
    begin, head, between = form.begin.lstrip(), form.head, form.between
    if not begin:
        lead = head[: len(head) - len(head.lstrip())]
        begin, head = form.mark, head.lstrip().removeprefix(form.mark)
        between += lead + form.mark
    return replace(form, begin=begin, head=head, between=between)


def after_channels(other: Format) -> Format:
    """Return the format of an answer of gpt-oss that has this in its final channel."""
    return _harmony(in_row(const(_FINAL), other), None)


def _harmony(forced: Format, other: Format | None) -> Format:
    """Return an answer in channels: it may reason first."""
    answer = forced
    if other is not None:
        answer = either(forced, in_row(const(_FINAL), other))
    reasoned = in_row(tag(_ANALYSIS, _ANY, "<|end|>"), const("<|start|>assistant"), answer)
    return either(answer, reasoned)


def _chosen(chat: ChatOptions) -> Sequence[Tool]:
    """Return the tools that may be called."""
    if chat.tool_choice != ToolChoice.FUNCTION:
        allowed = chat.callable_tools
        return [tool for tool in chat.tools if tool.name in allowed]
    chosen = [tool for tool in chat.tools if tool.name == chat.tool_name]
    if not chosen:
        raise InvalidRequest(
            f"tool_choice names {chat.tool_name!r}, which is none of the tools: name one of them",
            param="tool_choice",
        )
    return chosen


def _calls(form: CallForm, chat: ChatOptions) -> Format:
    named = chat.tool_choice == ToolChoice.FUNCTION  # clients expect a single call of it
    return {
        "type": "tags_with_separator",
        "tags": [_call(form, tool, forced=chat.must_call) for tool in _chosen(chat)],
        "separator": form.between,
        "at_least_one": True,
        "stop_after_first": named or not chat.parallel_tool_calls or form.one,
    }


def _call(form: CallForm, tool: Tool, *, forced: bool) -> Format:
    begin, *slots = re.split(f"([{ID}{INDEX}])", form.head.replace(NAME, tool.name))
    id = r"[A-Za-z0-9]{9}" if form.ids == IdForm.SHORT else r"[A-Za-z0-9_-]{1,40}"
    patterns = {ID: id, INDEX: r"[0-9]{1,3}"}
    between = (
        {"type": "regex", "pattern": patterns[part]} if part in patterns else const(part)
        for part in slots
    )
    schema = _schema(tool) if forced or tool.strict else _ANYTHING
    return tag(begin, in_row(*between, arguments_format(form, schema)), form.tail)


def promised(tool: Tool, chat: ChatOptions) -> str | None:
    """Return the schema that arguments of calls of a tool keep to; None: the model writes them as
    it likes."""
    return json.dumps(_schema(tool)) if chat.must_call or tool.strict else None


def _schema(tool: Tool) -> dict[str, Any]:
    if not tool.parameters:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    try:
        value = json.loads(tool.parameters)
    except (ValueError, RecursionError) as exc:
        raise InvalidRequest(f"the parameters of {tool.name}: {exc}", param="tools") from exc
    if not isinstance(value, dict):
        raise InvalidRequest(f"the parameters of {tool.name} must be an object", param="tools")
    return {"type": "object", **cast("dict[str, Any]", value)}
