"""Conversations with calls as a template renders them, and what sax reads in them."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from functools import cached_property
from os.path import commonprefix
from pathlib import Path
from typing import Any

from model_server.grammars.call_format import call_format
from model_server.grammars.constraint import Constraint
from model_server.text.dialect import AnswerDialect, dialect_of, kinds_of
from model_server.text.rendering.found_call import boundary
from model_server.text.rendering.frames import TemplateParts
from model_server.text.rendering.sandbox import RefusedChat
from model_server.text.rendering.worker import KnownTemplate
from sax.chat import AnswerFormat, ChatOptions, Message, ReasoningParser, Tool, ToolCall
from sax.dialects.answer_parser import AnswerParser
from tests.model_server.grammars.test_compiler import tokenizer
from tests.model_server.grammars.test_grammar_state import matcher_of
from tests.sax.dialects.texts import joined

FOLDER = Path(os.environ.get("SAX_TEMPLATES", ".cache/templates"))
_WORD = {"description": "any", "type": "string"}
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "at": {"type": "object", "description": "any",
               "properties": {"x": {"type": "number", "description": "any"}}},
        "city": _WORD,
        "days": {"type": "integer", "description": "any"},
        "note": _WORD,
        "ok": {"type": "boolean", "description": "any"},
        "tags": {"type": "array", "items": _WORD, "description": "any"},
    },
    "required": ["city"],
}  # fmt: skip
TOOLS = tuple(Tool(name, "any", json.dumps(PARAMETERS)) for name in ("get_weather", "now"))
LISTS: dict[str, Any] = {"at": {"x": 1.5}, "tags": ["a", "b c"]}
PLAIN: dict[str, Any] = {"city": "Oslo & Rome\nif", "days": -3, "note": "", "ok": True}
FIRST = {key: {**LISTS, **PLAIN}[key] for key in PARAMETERS["properties"]}
SECOND: dict[str, Any] = {"city": "{x} [1, 2], 5"}
_ASK = Message("user", "Hello?")
_OPTIONS = ChatOptions(tools=TOOLS, add_generation_prompt=False)


class PublicTemplate:
    def __init__(self, source: str, control_tokens: tuple[str, ...] = ()) -> None:
        """Raises BrokenTemplate."""
        self._known = KnownTemplate(TemplateParts(source, "<BOS>", "<EOS>", control_tokens))
        self._source = source

    @cached_property
    def dialect(self) -> AnswerDialect:
        written = self._known.learnt
        return dialect_of(self._source, written.calls, written.reasoning)

    @property
    def calls(self) -> tuple[tuple[str, dict[str, Any]], ...]:
        """The calls of the conversation. Lists are left out where Python's words are written: as
        many templates write them in Python, too, which no grammar has."""
        form = self.dialect.calls
        python = form is not None and form.python_words and form.arguments != "loose"
        first = PLAIN if python else FIRST
        calls = (("get_weather", first), ("now", SECOND))
        return calls[:1] if form is None or form.one else calls

    def turn(self) -> str | None:
        """The turn of calls as an answer; None: the template refuses it."""
        calls = tuple(
            ToolCall(f"z{n}1234567", name, json.dumps(arguments))
            for n, (name, arguments) in enumerate(self.calls)
        )
        plain = self._rendered((_ASK, Message("assistant", "Cqc"))) or ""
        results = [Message("tool", "Rqr", name=call.name, tool_call_id=call.id) for call in calls]
        called = (_ASK, Message("assistant", "", tool_calls=calls))
        text = self._rendered(called) or self._rendered((*called, *results))
        if text is None:
            return None
        same = boundary(plain, len(commonprefix([plain.partition("Cqc")[0], text])))
        start = max(text.rfind("Hello?") + 6, boundary(text, same))
        opens, closes = map(re.escape, self.dialect.thoughts)
        made = re.sub(r"\A<\|(\w+)_start\|><\|\1_end\|>", "", text[start:].partition("Rqr")[0])
        return re.sub(rf"\A\s*(?:(?:{opens})?\s*{closes}\s*)", "", made)

    def _rendered(self, chat: tuple[Message, ...]) -> str | None:
        try:
            return self._known.render(chat, _OPTIONS)
        except RefusedChat:
            return None


def read(text: str, dialect: AnswerDialect, *, in_pieces: bool = False) -> list[tuple[str, Any]]:
    """The calls that a gateway reads in an answer."""
    format = AnswerFormat(dialect.tools, dialect.reasoning, False, dialect.calls,
                          kinds_of(dialect.calls, TOOLS), dialect.thoughts)  # fmt: skip
    parser = AnswerParser(format, [tool.name for tool in TOOLS])
    events = [event for piece in (text if in_pieces else [text]) for event in parser.push(piece)]
    made = joined([*events, *parser.finish()])
    return [(name, _value(arguments)) for name, arguments in made.calls]


def _value(source: str) -> Any:
    try:
        return json.loads(source)
    except ValueError:
        return source


def only_calls(text: str, dialect: AnswerDialect) -> str:
    """The text without what ends the turn, and without ids that forced calls do not have."""
    assert dialect.calls is not None
    text = re.sub(r', "id": "z\d1234567"', "", text.lstrip())
    end = (dialect.calls.tail + dialect.calls.end).strip()
    end = end or "}"
    return text[: text.rfind(end) + len(end)]


def allowed(text: str, dialect: AnswerDialect) -> bool:
    """True if the grammar of forced calls allows the answer."""
    silent = replace(dialect, reasoning=ReasoningParser.NONE)
    chat = ChatOptions(tools=TOOLS, tool_choice="required")
    format = call_format(silent, chat, None, reasoning_open=False)
    matcher = matcher_of(Constraint("tools", json.dumps({"format": format})))
    assert not matcher.is_error(), matcher.get_error()
    tokens = tokenizer().encode_continuation(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def failure_of(template: PublicTemplate) -> str:
    """What fails of the calls that the template writes; "": nothing."""
    turn = template.turn()
    if turn is None:
        return "it refuses the conversation"
    if not any(name in turn for name, _ in template.calls):
        return "it writes no calls"
    want, dialect = [*template.calls], template.dialect
    for in_pieces in (False, True):
        if read(turn, dialect, in_pieces=in_pieces) != want:
            return "they are read otherwise"
    if dialect.calls is not None and not allowed(only_calls(turn, dialect), dialect):
        return "the grammar does not allow them"
    return ""
