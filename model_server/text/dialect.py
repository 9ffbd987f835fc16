"""The form in which a model writes calls and reasoning, as its chat template writes them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, cast

from model_server.text.rendering.call_text import form_by_words, takes_tools
from sax.call_form import DEEPSEEK, GEMMA, HERMES, LLAMA3, MISTRAL, Arguments, CallForm
from sax.chat import LEARNT, ReasoningParser, Tool, ToolParser

_HARMONY = frozenset(("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>"))
THINK = ("<think>", "</think>")
_JSON_TYPES = ("string", "number", "boolean", "null", "array", "object")


@dataclass(frozen=True, slots=True)
class AnswerDialect:
    """Form of one model's calls and reasoning."""

    tools: str = ToolParser.NONE  # the parser of older gateways that fits best, or LEARNT
    reasoning: ReasoningParser = ReasoningParser.NONE
    calls: CallForm | None = None  # None: it writes none, or in channels
    thoughts: tuple[str, str] = THINK  # around reasoning of the kind THINK
    generic: bool = False  # sax tells the model of tools, as its template has no place for them

    def marks(self, calls: bool) -> frozenset[str]:
        """Return the control tokens that divide an answer; calls: also those of calls."""
        if self.reasoning is ReasoningParser.GPT_OSS or self.tools == ToolParser.GPT_OSS:
            return _HARMONY
        found = frozenset[str]()
        if self.reasoning is ReasoningParser.THINK:
            found = frozenset(token for text in self.thoughts for token in _TOKEN.findall(text))
        if calls and self.calls is not None:
            variants = ("<|python_tag|>", "<|python_start|>") if not self.calls.mark else ()
            found |= self.calls.tokens.union(variants)
        return found


_TOKEN = re.compile(r"<[^<>\s]*>|\[[^\[\]\s]+\]")


def _older(form: CallForm) -> str:
    """Return the name of the parser that a gateway without this form reads it by."""
    if form.arguments == Arguments.OBJECT and form.mark == HERMES.mark and not form.begin:
        return ToolParser.HERMES
    if form.mark == MISTRAL.mark:
        return ToolParser.MISTRAL
    if form.mark == DEEPSEEK.mark:
        return ToolParser.DEEPSEEK
    if form.arguments == Arguments.OBJECT and not form.opening.startswith("["):
        return LEARNT if form.mark else ToolParser.LLAMA3
    if form.arguments == Arguments.PYTHON and form.begin == GEMMA.begin:
        return ToolParser.GEMMA
    return LEARNT


_NAMED: dict[str, CallForm] = {
    ToolParser.HERMES: HERMES,
    ToolParser.LLAMA3: LLAMA3,
    ToolParser.MISTRAL: MISTRAL,
    ToolParser.GEMMA: GEMMA,
    ToolParser.DEEPSEEK: DEEPSEEK,
}


def harmonic(source: str) -> bool:
    """True if a template writes messages in channels, as gpt-oss does."""
    return "<|channel|>" in source and "<|start|>" in source


def dialect_of(
    source: str,
    learnt: CallForm | None = None,
    thoughts: tuple[str, str] | None = None,
    *,
    tools: str | None = None,
    reasoning: str | None = None,
) -> AnswerDialect:
    """Return the dialect of a template's model. learnt, thoughts: what the template was found to
    write. tools, reasoning: known otherwise."""
    generic = not takes_tools(source)
    found = learnt or (HERMES if generic else form_by_words(source))
    told, form = _told(source, tools, found)
    if reasoning is None:
        # DeepSeek's first R1 names the closing mark only: it leaves out what comes before it.
        named = any(mark in source for mark in THINK)
        reasoning = ReasoningParser.THINK if thoughts or named else "none"
        if told == ToolParser.GPT_OSS:
            reasoning, thoughts = ReasoningParser.GPT_OSS, None
    generic = generic and form is not None
    return AnswerDialect(told, ReasoningParser(reasoning), form, thoughts or THINK, generic)


def _told(source: str, tools: str | None, found: CallForm) -> tuple[str, CallForm | None]:
    """Return the name of the calls' form, and the form."""
    if tools is None:
        return (ToolParser.GPT_OSS, None) if harmonic(source) else (_older(found), found)
    return tools, found if tools == _older(found) else _NAMED.get(tools)


def kinds_of(form: CallForm | None, tools: tuple[Tool, ...]) -> dict[str, dict[str, list[str]]]:
    """Return by tool and parameter the JSON types that a value may have, for a form that does not
    tell texts from other values, or writes keys without quotes. Of tags, also those of values
    within one, by their paths."""
    if form is None or form.arguments in (Arguments.OBJECT, Arguments.JSON):
        return {}
    return {tool.name: _parameters(tool.parameters, form.item) for tool in tools}


def _parameters(source: str, item: str) -> dict[str, list[str]]:
    try:
        schema: Any = json.loads(source or "{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(schema, dict):
        return {}
    root = cast("dict[str, Any]", schema)
    types = SchemaTypes(root)
    found: dict[str, list[str]] = {}
    waiting = [("", referred(root, root))]
    while waiting and len(found) < _MOST_PATHS:
        path, parts = waiting.pop()
        for key, value in _members(parts, item if path else "").items():
            at = f"{path}.{key}" if path else key
            found[at] = sorted(types.of(value))
            if item and isinstance(value, dict) and at.count(".") < _DEEPEST:
                waiting.append((at, referred(root, cast("dict[str, Any]", value))))
    return {
        key: types
        for key, types in found.items()
        if len(types) < len(_JSON_TYPES) or not _PLAIN_KEY.fullmatch(key)
    }


_MOST_PATHS, _DEEPEST = 4096, 8
_PLAIN_KEY = re.compile(r"[\w.-]*")  # it has nothing in it that may end keys


def _members(parts: dict[str, Any], item: str) -> dict[str, Any]:
    """Return the schemas of the values within one: of properties, and of a list's items under the
    key of these."""
    properties = parts.get("properties")
    found = dict(cast("dict[str, Any]", properties)) if isinstance(properties, dict) else {}
    return {**found, item: parts["items"]} if item and "items" in parts else found


_PYTHON: dict[type, str] = {
    **{str: "string", bool: "boolean", type(None): "null", int: "number", float: "number"},
    **{list: "array", dict: "object"},
}


_EVERY = frozenset(_JSON_TYPES)


class SchemaTypes:
    """Tells the JSON types that parts of a schema allow, with integers among numbers.

    Each part is looked at once: parts may refer to each other, and to themselves.
    """

    def __init__(self, root: dict[str, Any]) -> None:
        """root: the schema that references point into."""
        self._root = root
        # By identity, with the part itself, so that no other one gets it meanwhile.
        self._known: dict[int, tuple[dict[str, Any], frozenset[str]]] = {}

    def of(self, schema: Any, depth: int = 0) -> frozenset[str]:
        if not isinstance(schema, dict) or depth > _DEEPEST:
            return _EVERY
        parts = cast("dict[str, Any]", schema)
        if id(parts) not in self._known:
            self._known[id(parts)] = parts, _EVERY  # to itself
            self._known[id(parts)] = parts, self._told(parts, depth + 1) or _EVERY
        return self._known[id(parts)][1]

    def _told(self, parts: dict[str, Any], depth: int) -> frozenset[str]:
        if isinstance(ref := parts.get("$ref"), str):
            return self.of(_pointed(self._root, ref), depth)
        allowed = _EVERY
        if "type" in parts:
            given = parts["type"] if isinstance(parts["type"], list) else [parts["type"]]
            named = cast("list[Any]", given)
            allowed &= {"number" if each == "integer" else str(each) for each in named}
        values: Any = [parts["const"]] if "const" in parts else parts.get("enum")
        if isinstance(values, list):
            allowed &= {_PYTHON.get(type(value), "") for value in cast("list[Any]", values)}
        for word in ("anyOf", "oneOf"):
            if isinstance(options := parts.get(word), list):
                each = (self.of(one, depth) for one in cast("list[Any]", options))
                allowed &= frozenset[str]().union(*each)
        if isinstance(every := parts.get("allOf"), list):
            for one in cast("list[Any]", every):
                allowed &= self.of(one, depth)
        return allowed


def referred(root: dict[str, Any], parts: dict[str, Any]) -> dict[str, Any]:
    """Return the schema that a part stands for: what it refers to, or its only option beside null.

    Generators write so what has a name, and what may be left out. root: what references point into.
    """
    for _ in range(_DEEPEST):
        if "properties" in parts or "items" in parts:
            break
        ref = parts.get("$ref")
        inner = _pointed(root, ref) if isinstance(ref, str) else _only_option(parts)
        if not isinstance(inner, dict):
            break
        parts = cast("dict[str, Any]", inner)
    return parts


def _only_option(parts: dict[str, Any]) -> Any:
    for word in ("allOf", "anyOf", "oneOf"):
        if isinstance(options := parts.get(word), list):
            others = [one for one in cast("list[Any]", options) if one != {"type": "null"}]
            return others[0] if len(others) == 1 else None
    return None


def _pointed(root: dict[str, Any], ref: str) -> Any:
    """Return what a reference within a schema points to; None: nothing that is found here."""
    at: Any = root
    for step in ref.removeprefix("#").split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        at = cast("dict[str, Any]", at).get(key) if isinstance(at, dict) else None
    return at if ref.startswith("#") else None
