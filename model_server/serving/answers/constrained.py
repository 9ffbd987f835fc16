"""Has an answer checked by what its grammar does not hold of its schema."""

from __future__ import annotations

from functools import partial

from model_server.engine.types import Grammar
from model_server.grammars.compiler import constraint_reader
from model_server.grammars.grammar_state import CompiledGrammar
from model_server.serving.answers.running_request import RunningRequest
from model_server.serving.chats.divided_answer import AnswerDivision
from model_server.text.text_decoder import whole_text
from sax.chat import ReasoningParser
from sax.types import GenerateRequest

_FINAL = "<|channel|>final<|message|>"


def check_after(
    running: RunningRequest,
    grammar: Grammar | None,
    request: GenerateRequest,
    division: AnswerDivision,
) -> None:
    """Have the finished answer checked, if its grammar holds only a part of its json_schema.

    Not where tools may be called: the answer may be a call.
    """
    schema = request.sampling.json_schema
    if not isinstance(grammar, CompiledGrammar) or not grammar.partly or not schema:
        return
    if request.chat.may_call:
        return
    begun = ""
    if request.answer is not None:
        decoder = running.servable.loaded.tokenizer.decoder(marks=division.marks)
        begun = whole_text(decoder, request.answer.token_ids)
    check = partial(constraint_reader().check, schema)
    running.check(check, begun, _before_json(division))


def _before_json(division: AnswerDivision) -> str:
    """Return the text behind which the JSON of an answer begins; "": nothing comes before it."""
    told = division.format
    if told is not None and told.reasoning == ReasoningParser.GPT_OSS:
        return _FINAL
    reasoning = division.reasoning
    return reasoning.form.closes.decode() if reasoning and reasoning.form.is_open else ""
