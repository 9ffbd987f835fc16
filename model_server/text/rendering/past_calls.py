"""Calls of earlier turns as templates see them: arguments, whole or cut, and ids. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

from sax.call_form import FUNCTIONS_ID, INDEX, NAME, IdForm
from sax.chat import Message, ToolCall
from sax.dialects.call_object import whole_characters

# The key under which arguments stand that are no JSON, as Anthropic's documentation names it.
INVALID_JSON = "INVALID_JSON"
_LONGEST_CUT = 1 << 20  # characters of cut arguments that are read


class CallArguments(dict[str, Any]):
    """Arguments of a call: an object for templates that go through it, and its JSON for those that
    write it as a text, as both kinds are in use. The JSON is what the model wrote, to the letter,
    so that the tokens of the next prompt are those of its answer."""

    def __init__(self, values: dict[str, Any], source: str) -> None:
        super().__init__(values)
        self.source = source

    def __str__(self) -> str:
        return self.source

    def __add__(self, other: object) -> str:
        return f"{self}{other}"

    def __radd__(self, other: object) -> str:
        return f"{other}{self}"


def read_arguments(source: str) -> tuple[dict[str, Any], str] | None:
    """Return arguments and their JSON; None: they are no object, nor the beginning of one.

    Arguments that were cut, as an answer was at its last token, are completed.
    """
    source = source.strip() or "{}"
    for text in (source, *_completed(source)):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if not isinstance(value, dict):
            return None
        return cast("dict[str, Any]", whole(value)), whole_characters(text)
    if not source.startswith("{") or len(source) > _LONGEST_CUT:
        return None
    kept = {INVALID_JSON: whole_characters(source)}
    return kept, json.dumps(kept, ensure_ascii=False)


def whole(value: Any) -> Any:
    """Return a JSON value without halves of surrogate pairs, which UTF-8 cannot write."""
    if isinstance(value, str):
        return whole_characters(value)
    if isinstance(value, list):
        return [whole(each) for each in cast("list[Any]", value)]
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {whole_characters(key): whole(each) for key, each in items}
    return value


_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|"|[{}\[\],:]', re.DOTALL)


def _completed(source: str) -> Iterator[str]:
    """Yield what a cut JSON object may have been: with its text and brackets closed, then without
    its last value."""
    if not source.startswith("{") or len(source) > _LONGEST_CUT:
        return
    closers, safe, end = "", "", 0
    for token in _TOKENS.finditer(source):
        mark = token[0]
        if mark == '"':  # a text that does not end
            half = re.sub(r"\\(?:u[0-9a-fA-F]{0,3})?\Z", "", source[token.start() :])
            yield source[: token.start()] + half + '"' + closers
            break
        if mark in "{[":
            closers = ("}" if mark == "{" else "]") + closers
        elif mark in "}]":
            closers = closers[1:]
        if mark in "{[":
            safe, end = closers, token.end()
        elif mark in ",}]":
            safe, end = closers, token.end() - (mark == ",")
    yield source.rstrip().rstrip(",:") + closers
    yield source[:end] + safe


_FUNCTION = re.compile(r"functions\.[^:\s]+:\d+")
_SHORT = re.compile(r"[A-Za-z0-9]{9}")


def with_ids(chat: tuple[Message, ...], form: str) -> tuple[Message, ...]:
    """Return the chat with ids that the template takes; those that it takes stay as they are.

    A conversation may have begun with another model, whose ids were of another form.
    """
    if form == IdForm.ANY:
        return chat
    known: dict[str, str] = {}
    turns: list[Message] = []
    for turn in chat:
        calls = tuple(replace(call, id=_fitting(call, form, known)) for call in turn.tool_calls)
        answered = turn.tool_call_id
        if form == IdForm.SHORT and answered and answered not in known:
            known[answered] = _short(answered)
        turns.append(replace(turn, tool_calls=calls, tool_call_id=known.get(answered, answered)))
    return tuple(turns)


def _fitting(call: ToolCall, form: str, known: dict[str, str]) -> str:
    if form == IdForm.SHORT:
        made = _short(call.id)
    elif _FUNCTION.fullmatch(call.id):
        made = call.id
    else:
        made = FUNCTIONS_ID.replace(NAME, call.name).replace(INDEX, str(len(known)))
    known[call.id] = made
    return made


def _short(id: str) -> str:
    return id if _SHORT.fullmatch(id) else hashlib.sha256(id.encode()).hexdigest()[:9]
