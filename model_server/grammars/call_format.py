"""Makes the structural tag under which an answer is a call of tools, as the model's dialect writes
calls. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, cast

from msgspec.structs import replace

from model_server.grammars.argument_format import (
    Format,
    arguments_format,
    const,
    either,
    in_row,
    tag,
)
from model_server.text.dialect import THINK, AnswerDialect
from sax.call_form import ID, INDEX, NAME, Arguments, CallForm, IdForm
from sax.chat import ChatOptions, ReasoningParser, Tool, ToolChoice, ToolParser
from sax.errors import InvalidRequest, UnsupportedParameter

_ANY: Format = {"type": "any_text"}
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
