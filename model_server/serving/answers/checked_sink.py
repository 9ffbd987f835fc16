"""Checks a finished answer by what its grammar does not hold, before its last chunk is told.

Runs on the event loop; the check itself is a process's, within limits. An answer that breaks its
schema is the client's all the same: the last chunk says how.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from model_server.engine.types import Grammar
from model_server.grammars.call_format import promised
from model_server.grammars.compiler import AnswerVerdict, constraint_reader
from model_server.grammars.grammar_state import CompiledGrammar
from model_server.serving.chats.divided_answer import AnswerDivision
from model_server.text.text_decoder import whole_text
from model_server.text.tokenizer import Tokenizer
from sax.call_form import Arguments
from sax.chat import AnswerFormat, ReasoningParser
from sax.dialects.answer_parser import AnswerParser, forms_of
from sax.dialects.events import CollectedAnswer
from sax.errors import SaxError
from sax.types import GenerateRequest, TokenChunk

logger = logging.getLogger(__name__)

# The last call carries an error or a chunk with a finish reason.
Sink = Callable[[TokenChunk | SaxError], None]
Check = Callable[[str], Awaitable[AnswerVerdict]]
_FINAL = "<|channel|>final<|message|>"
_JSON = (Arguments.OBJECT, Arguments.JSON)
# Takes a schema, and what is to keep to it.
CheckJson = Callable[[str, str], Awaitable[AnswerVerdict]]


class CheckedAnswer(Protocol):
    """Reads an answer as it comes, and checks it at its end."""

    def push(self, text: str) -> None: ...

    async def verdict(self) -> AnswerVerdict: ...


class CheckedJson:
    """An answer that is JSON, behind reasoning or not."""

    def __init__(self, check: Check, after: str = "") -> None:
        """after: the text behind which the JSON begins; "": it is the whole answer."""
        self._check = check
        self._after = after
        self._texts: list[str] = []

    def push(self, text: str) -> None:
        self._texts.append(text)

    async def verdict(self) -> AnswerVerdict:
        answer = "".join(self._texts)
        return await self._check(answer.partition(self._after)[2] if self._after else answer)


class CheckedSink:
    """Passes chunks on, and has the answer checked once it ends by itself."""

    def __init__(self, sink: Sink, answer: CheckedAnswer, counts: Counter[str]) -> None:
        """counts: gets the verdict."""
        self._sink = sink
        self._answer = answer
        self._counts = counts
        self._checking: asyncio.Task[None] | None = None  # kept alive here

    def __call__(self, chunk: TokenChunk | SaxError) -> None:
        if isinstance(chunk, TokenChunk):
            self._answer.push(chunk.text)
            if chunk.finish_reason == "stop":
                self._checking = asyncio.create_task(self._told(chunk))
                return
        self._sink(chunk)

    async def _told(self, last: TokenChunk) -> None:
        verdict = await self._answer.verdict()
        self._counts[verdict.kind] += 1
        if verdict.kind != "kept":
            logger.info("an answer and its schema: %s", verdict.why)
        self._sink(replace(last, schema_violation=verdict.why))


def check_after(
    has_checked: Callable[[CheckedAnswer], None],
    tokenizer: Tokenizer,
    grammar: Grammar | None,
    request: GenerateRequest,
    division: AnswerDivision,
) -> None:
    """Have the finished answer checked, if its grammar holds only a part of its json_schema, or of
    the schemas of the tools whose arguments it is to keep to.

    has_checked: `RunningRequest.check`.
    """
    if not isinstance(grammar, CompiledGrammar):
        return
    checked = _checked(grammar, request, division)
    if checked is None:
        return
    if request.answer is not None:
        decoder = tokenizer.decoder(marks=division.marks)
        checked.push(whole_text(decoder, request.answer.token_ids))
    has_checked(checked)


def _checked(
    grammar: CompiledGrammar, request: GenerateRequest, division: AnswerDivision
) -> CheckedAnswer | None:
    """Return what reads and checks the answer; None: its grammar holds all."""
    chat, schema, check = request.chat, request.sampling.json_schema, constraint_reader().check
    if chat.may_call and division.format is not None:
        if not grammar.partly and writes_json(division.format):
            return None
        names = {tool.name: promised(tool, chat) for tool in chat.tools}
        return CheckedCalls(division.format, names, check, schema)
    if not grammar.partly or not schema:
        return None
    return CheckedJson(partial(check, schema), _before_json(division))


def _before_json(division: AnswerDivision) -> str:
    """Return the text behind which the JSON of an answer begins; "": nothing comes before it."""
    told = division.format
    if told is not None and told.reasoning == ReasoningParser.GPT_OSS:
        return _FINAL
    reasoning = division.reasoning
    return reasoning.form.closes.decode() if reasoning and reasoning.form.is_open else ""


class CheckedCalls:
    """The calls of an answer, checked by what its grammar does not hold of schemas."""

    def __init__(
        self, format: AnswerFormat, tools: Mapping[str, str | None], check: CheckJson, schema: str
    ) -> None:
        """tools: those that may be called, each with the schema that its arguments were promised
        to keep to; None: no promise. schema: of an answer without calls; "": none."""
        self._parser = AnswerParser(format, tools)
        self._tools = tools
        self._check = check
        self._schema = schema
        self._said = CollectedAnswer()

    def push(self, text: str) -> None:
        self._said.add(self._parser.push(text))

    async def verdict(self) -> AnswerVerdict:
        """Return what is wrong with the first call that breaks its schema."""
        self._said.add(self._parser.finish())
        found = AnswerVerdict("kept")
        said = self._said.message()
        if not said.tool_calls and self._schema:
            return await self._check(self._schema, self._said.content)
        for number, call in enumerate(said.tool_calls):
            schema = self._tools.get(call.name)
            if schema is None:
                continue
            found = await self._check(schema, call.arguments)
            if found.kind != "kept":
                return found._replace(why=f"arguments of call {number} ({call.name}): {found.why}")
        return found


def writes_json(format: AnswerFormat) -> bool:
    """True if calls have their arguments as JSON, so that a grammar holds all that it can of their
    schemas; other forms hold less."""
    return all(form.arguments in _JSON for form in forms_of(format))
