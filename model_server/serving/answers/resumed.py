"""Answers that another replica began: the part that their client has is followed, not computed."""

from __future__ import annotations

from msgspec.structs import replace

from model_server.engine.engine import EngineRequest
from model_server.engine.limits import EngineLimits
from model_server.engine.parts.routed_experts import ShowRoutes
from model_server.engine.registry import finish_of
from model_server.engine.request import Finish
from model_server.grammars.grammar_state import BegunGrammar, CompiledGrammar
from model_server.serving.answers.detokenizer import Detokenizer
from sax.errors import Unavailable
from sax.types import AnswerSoFar


def resumed(asked: EngineRequest, text: Detokenizer, answer: AnswerSoFar) -> EngineRequest:
    """Let the text and the grammar follow an answer, which takes some microseconds per token.

    Raises InvalidRequest for an answer that the grammar does not allow.
    """
    text.follow(answer)
    if isinstance(asked.grammar, CompiledGrammar):
        return replace(asked, grammar=asked.grammar.follow(answer.token_ids))
    return asked


def finished(asked: EngineRequest, limits: EngineLimits) -> Finish | None:
    """Return the finish reason of a request with nothing left to compute.

    Raises Unavailable if it asks for what only computing tells.
    """
    finish = _finished(asked, limits)
    if finish and asked.setting(ShowRoutes):
        raise Unavailable(
            "return_routed_experts: the answer is complete, and its replica was lost before it "
            "told the experts: send the request again"
        )
    return finish


def _finished(asked: EngineRequest, limits: EngineLimits) -> Finish | None:
    if asked.score_from is not None:
        return None
    if asked.answer and (finish := finish_of(asked, limits)):
        return finish
    if isinstance(asked.grammar, BegunGrammar) and asked.grammar.complete:
        return "stop"
    return None if asked.max_tokens else "length"  # the only token of a prompt
