"""Makes the structural tag under which an answer is a call of tools, as the model's dialect writes
calls. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from model_server.text.dialect import AnswerDialect
from sax.chat import ChatOptions, ReasoningParser, Tool, ToolChoice, ToolParser
from sax.errors import InvalidRequest, UnsupportedParameter

Format = dict[str, Any]

_ANY: Format = {"type": "any_text"}
_BLANK: Format = {"type": "regex", "pattern": r"[ \n]{0,4}"}
_ANYTHING = {"type": "object"}
_ANALYSIS, _FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"


@dataclass(frozen=True, slots=True)
class _CallForm:
    """Texts around the calls of an answer, and around the arguments of each."""

    mark: str  # begins the calls, wherever they stand; "": nothing tells them from other text
    opened: str
    name: str  # before the arguments, with the tool's name for NAME, or "NAME" in JSON
    closed: str  # after the arguments
    between: str
    end: str = ""


_BAR, _GAP = "\uff5c", "\u2581"


def _token(words: str) -> str:
    return f"<{_BAR}{words.replace(' ', _GAP)}{_BAR}>"


_FORMS: dict[tuple[ToolParser, bool], _CallForm] = {
    (ToolParser.HERMES, False): _CallForm(
        mark="<tool_call>",
        opened="",
        name='\n{"name": "NAME", "arguments": ',
        closed="}\n</tool_call>",
        between="\n<tool_call>",
    ),
    (ToolParser.LLAMA3, False): _CallForm(
        mark="", opened="", name='{"name": "NAME", "parameters": ', closed="}", between="; "
    ),
    (ToolParser.MISTRAL, True): _CallForm(
        mark="[TOOL_CALLS]",
        opened="[",
        name='{"name": "NAME", "arguments": ',
        closed="}",
        between=", ",
        end="]",
    ),
    (ToolParser.MISTRAL, False): _CallForm(
        mark="[TOOL_CALLS]", opened="", name="NAME[ARGS]", closed="", between="[TOOL_CALLS]"
    ),
    (ToolParser.GEMMA, False): _CallForm(
        mark="", opened="[", name="NAME(", closed=")", between=", ", end="]"
    ),
    (ToolParser.DEEPSEEK, True): _CallForm(
        mark=_token("tool calls begin"),
        opened="",
        name=f"{_token('tool call begin')}function{_token('tool sep')}NAME\n```json\n",
        closed=f"\n```{_token('tool call end')}",
        between="\n",
        end=_token("tool calls end"),
    ),
    (ToolParser.DEEPSEEK, False): _CallForm(
        mark=_token("tool calls begin"),
        opened="",
        name=f"{_token('tool call begin')}NAME{_token('tool sep')}",
        closed=_token("tool call end"),
        between="",
        end=_token("tool calls end"),
    ),
    (ToolParser.GPT_OSS, False): _CallForm(
        mark="<|channel|>commentary to=functions.",
        opened="",
        name="NAME <|constrain|>json<|message|>",
        closed="",
        between="",
    ),
}


def call_format(
    dialect: AnswerDialect, chat: ChatOptions, other: Format | None, *, reasoning_open: bool
) -> Format | None:
    """Return the format of an answer that calls tools as the chat asks; None: nothing is asked.

    other: format of an answer without a call, if there is one. reasoning_open: the answer begins
    inside the reasoning. Raises InvalidRequest and UnsupportedParameter, naming the field.
    """
    if not chat.may_call:
        return None
    if dialect.tools is ToolParser.NONE:
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
        return after_thoughts(answer, reasoning_open=reasoning_open)
    return answer


def after_thoughts(answer: Format, *, reasoning_open: bool) -> Format:
    """Return the format of an answer that reasons first: it must if it begins inside the
    reasoning, else it may."""
    begin = "" if reasoning_open else "<think>"
    reasoned = _sequence(_tag(begin, _ANY, "</think>"), _BLANK, answer)
    return reasoned if reasoning_open else _or(answer, reasoned)


def _answer(dialect: AnswerDialect, chat: ChatOptions, other: Format | None) -> Format:
    older = dialect.older and (dialect.tools, True) in _FORMS
    form = _FORMS[dialect.tools, older]
    calls = _calls(form, dialect.tools, _chosen(chat), chat)
    forced = _sequence(_const(form.mark + form.opened), calls, _const(form.end))
    if dialect.tools is ToolParser.GPT_OSS:
        return _harmony(forced, None if chat.must_call else other or _ANY)
    if chat.must_call:
        return forced
    if other is not None:
        return _or(forced, other)
    if form.mark:
        content = _sequence(_const(form.opened), calls) if form.opened else calls
        return {
            "type": "triggered_tags",
            "triggers": [form.mark],
            "tags": [_tag(form.mark, content, form.end)],
            "stop_after_first": True,
        }
    # Text that begins as a call does is one.
    first = "[" if form.opened else "{"
    return _or(forced, {"type": "regex", "pattern": rf"([^\{first}](.|\n)*)?"})


def after_channels(other: Format) -> Format:
    """Return the format of an answer of gpt-oss that has this in its final channel."""
    return _harmony(_sequence(_const(_FINAL), other), None)


def _harmony(forced: Format, other: Format | None) -> Format:
    """Return an answer in channels: it may reason first."""
    answer = forced
    if other is not None:
        answer = _or(forced, _sequence(_const(_FINAL), other))
    reasoned = _sequence(_tag(_ANALYSIS, _ANY, "<|end|>"), _const("<|start|>assistant"), answer)
    return _or(answer, reasoned)


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


def _calls(form: _CallForm, parser: ToolParser, tools: Sequence[Tool], chat: ChatOptions) -> Format:
    named = chat.tool_choice == ToolChoice.FUNCTION  # clients expect a single call of it
    one = named or not chat.parallel_tool_calls or parser is ToolParser.GPT_OSS
    return {
        "type": "tags_with_separator",
        "tags": [
            _tag(
                form.name.replace("NAME", tool.name),
                _arguments(tool, parser, forced=chat.must_call),
                form.closed,
            )
            for tool in tools
        ],
        "separator": form.between,
        "at_least_one": True,
        "stop_after_first": one,
    }


def _arguments(tool: Tool, parser: ToolParser, *, forced: bool) -> Format:
    schema = _schema(tool)
    if parser is ToolParser.GEMMA:
        return _keywords(schema, tool.name)
    constrained = forced or tool.strict
    return {"type": "json_schema", "json_schema": schema if constrained else _ANYTHING}


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


def _keywords(schema: dict[str, Any], name: str) -> Format:
    """Return arguments as Python writes them: key=value, in the order of the schema."""
    properties = schema.get("properties", {})
    if not isinstance(properties, dict) or not (schema.keys() <= _PLAIN):
        raise UnsupportedParameter(
            f"the parameters of {name} cannot be forced: this model writes calls as Python does, "
            'so give an object with properties, or send tool_choice "auto"',
            param="tools",
        )
    required = set(schema.get("required", ()))
    definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    pairs = {
        key: _sequence(
            _const(f"{key}="),
            {"type": "json_schema", "json_schema": {**cast("Format", each), **definitions}},
        )
        for key, each in cast("dict[str, Any]", properties).items()
    }
    optional = {key: _or(_sequence(_const(", "), pair), _const("")) for key, pair in pairs.items()}
    if required := [key for key in pairs if key in required]:
        others = [optional[key] for key in pairs if key not in required]
        first = [part for key in required for part in (_const(", "), pairs[key])][1:]
        return _sequence(*first, *others)
    names = list(pairs)
    begun = (
        _sequence(pairs[name], *(optional[other] for other in names[place + 1 :]))
        for place, name in enumerate(names)
    )
    return _or(*begun, _const(""))


_PLAIN = frozenset(
    {
        *("type", "properties", "required", "additionalProperties", "$defs", "definitions"),
        *("title", "description", "$schema"),
    }
)


def _const(text: str) -> Format:
    return {"type": "const_string", "value": text}


def _tag(begin: str, content: Format, end: str) -> Format:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _sequence(*parts: Format) -> Format:
    return {"type": "sequence", "elements": [part for part in parts if part != _const("")]}


def _or(*parts: Format) -> Format:
    return {"type": "or", "elements": list(parts)}
