"""Checks a finished answer by what its grammar does not hold, before its last chunk is told.

Runs on the event loop; the check itself is a process's, within limits. An answer that breaks its
schema is the client's all the same: the last chunk says how.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial

from msgspec.structs import replace

from model_server.engine.types import Grammar
from model_server.grammars.compiler import AnswerVerdict, constraint_reader
from model_server.grammars.grammar_state import CompiledGrammar
from model_server.serving.chats.divided_answer import AnswerDivision
from model_server.text.text_decoder import whole_text
from model_server.text.tokenizer import Tokenizer
from sax.chat import ReasoningParser
from sax.errors import SaxError
from sax.types import GenerateRequest, TokenChunk

logger = logging.getLogger(__name__)

# The last call carries an error or a chunk with a finish reason.
Sink = Callable[[TokenChunk | SaxError], None]
Check = Callable[[str], Awaitable[AnswerVerdict]]
_FINAL = "<|channel|>final<|message|>"


class CheckedSink:
    """Passes chunks on, and has the answer checked once it ends by itself."""

    def __init__(
        self, sink: Sink, check: Check, counts: Counter[str], begun: str = "", after: str = ""
    ) -> None:
        """counts: gets the verdict. begun: text of the answer that the client has already. after:
        the text behind which the JSON begins; "": it is the whole answer."""
        self._sink = sink
        self._check = check
        self._counts = counts
        self._after = after
        self._texts = [begun]
        self._checking: asyncio.Task[None] | None = None  # kept alive here

    def __call__(self, chunk: TokenChunk | SaxError) -> None:
        if isinstance(chunk, TokenChunk):
            self._texts.append(chunk.text)
            if chunk.finish_reason == "stop":
                self._checking = asyncio.create_task(self._told(chunk))
                return
        self._sink(chunk)

    async def _told(self, last: TokenChunk) -> None:
        answer = "".join(self._texts)
        if self._after:
            answer = answer.partition(self._after)[2]
        verdict = await self._check(answer)
        self._counts[verdict.kind] += 1
        if verdict.kind != "kept":
            logger.info("an answer and its schema: %s", verdict.why)
        self._sink(replace(last, schema_violation=verdict.why))


def check_after(
    has_checked: Callable[[Check, str, str], None],
    tokenizer: Tokenizer,
    grammar: Grammar | None,
    request: GenerateRequest,
    division: AnswerDivision,
) -> None:
    """Have the finished answer checked, if its grammar holds only a part of its json_schema.

    Not where tools may be called: the answer may be a call. has_checked: `RunningRequest.check`.
    """
    schema = request.sampling.json_schema
    if not isinstance(grammar, CompiledGrammar) or not grammar.partly or not schema:
        return
    if request.chat.may_call:
        return
    begun = ""
    if request.answer is not None:
        decoder = tokenizer.decoder(marks=division.marks)
        begun = whole_text(decoder, request.answer.token_ids)
    check = partial(constraint_reader().check, schema)
    has_checked(check, begun, _before_json(division))


def _before_json(division: AnswerDivision) -> str:
    """Return the text behind which the JSON of an answer begins; "": nothing comes before it."""
    told = division.format
    if told is not None and told.reasoning == ReasoningParser.GPT_OSS:
        return _FINAL
    reasoning = division.reasoning
    return reasoning.form.closes.decode() if reasoning and reasoning.form.is_open else ""
