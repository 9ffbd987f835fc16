"""Has an answer checked by what its grammar does not hold of its schema."""

from __future__ import annotations

from functools import partial

from model_server.engine.types import Grammar
from model_server.grammars.call_format import promised
from model_server.grammars.compiler import constraint_reader
from model_server.grammars.grammar_state import CompiledGrammar
from model_server.serving.answers.checked_calls import CheckedCalls, writes_json
from model_server.serving.answers.checked_sink import CheckedAnswer, CheckedJson
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
    """Have the finished answer checked, if its grammar holds only a part of its json_schema, or of
    the schemas of the tools whose arguments it is to keep to."""
    if not isinstance(grammar, CompiledGrammar):
        return
    checked = _checked(grammar, request, division)
    if checked is None:
        return
    if request.answer is not None:
        decoder = running.servable.loaded.tokenizer.decoder(marks=division.marks)
        checked.push(whole_text(decoder, request.answer.token_ids))
    running.check(checked)


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
