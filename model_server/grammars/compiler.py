"""Compiles the constraints of requests, each on a thread of its own and within limits.

The threads cannot be stopped, so that a grammar that takes too long is refused and its thread left
to run out; while several do, other grammars are refused for a while. The last ones compiled are
kept.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from model_server.engine.worker import Worker
from model_server.grammars.closing import Closings
from model_server.grammars.constraint import Constraint, grammar_of
from model_server.grammars.guide import CompiledGrammar, GuideCounts
from model_server.grammars.vocabulary import GrammarTokens, ll_tokenizer
from sax.errors import InvalidRequest, QueueFull, UnsupportedParameter

_COMPILE_S = 5.0  # usual ones take milliseconds
_AT_ONCE = 4
_KEPT = 128
_LIMITS = LLParserLimits(
    initial_lexer_fuel=500_000,
    step_lexer_fuel=100_000,
    step_max_items=20_000,  # of ambiguous grammars: about 50 ms
    max_lexer_states=50_000,
    max_grammar_size=200_000,
    verbose_errors=False,
)


class GrammarCompiler:
    """Compiles for one model. Its methods are for the event loop."""

    def __init__(self, vocabulary: GrammarTokens, rows: int, limit_s: float = _COMPILE_S) -> None:
        """rows: of the model's embedding. Takes tenths of a second."""
        texts = [vocabulary.token_bytes(token) for token in range(rows)]
        self._tokenizer = ll_tokenizer(vocabulary, texts)
        self._specials = {
            vocabulary.token_bytes(token).decode(errors="replace"): token
            for token in vocabulary.control_ids
            if token < rows
        }
        self._closings = Closings(self._tokenizer, texts)
        self._rows = rows
        self._limit_s = limit_s
        self.counts = GuideCounts()
        self._kept: OrderedDict[Constraint, CompiledGrammar] = OrderedDict()
        self._lock = threading.Lock()
        self._running = 0

    async def compile(self, constraint: Constraint) -> CompiledGrammar:
        """Return the compiled constraint.

        Raises InvalidRequest for one that is wrong or takes too long, QueueFull while too many are
        being compiled, UnsupportedParameter for a model without an end token.
        """
        if constraint in self._kept:
            self._kept.move_to_end(constraint)
            return self._kept[constraint]
        if (tokenizer := self._tokenizer) is None:
            raise UnsupportedParameter(
                f"{constraint.field} is not supported by this model: it has no end token",
                param=constraint.field,
            )
        made = await self._within_limit(constraint, tokenizer)
        self._kept[constraint] = made
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return made

    async def _within_limit(
        self, constraint: Constraint, tokenizer: LLTokenizer
    ) -> CompiledGrammar:
        with self._lock:
            if self._running >= _AT_ONCE:
                raise QueueFull(
                    f"{_AT_ONCE} grammars are being compiled; retry in 1 s", retry_after_s=1.0
                )
            self._running += 1
        job = Worker.once("grammar", lambda: self._compiled(constraint, tokenizer))
        try:
            return await asyncio.wait_for(asyncio.wrap_future(job), self._limit_s)
        except TimeoutError as exc:
            raise InvalidRequest(
                f"{constraint.field} took longer than {self._limit_s:g} s to compile: simplify it",
                param=constraint.field,
            ) from exc

    def _compiled(self, constraint: Constraint, tokenizer: LLTokenizer) -> CompiledGrammar:
        try:
            grammar = grammar_of(constraint, self._specials)
            matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=_LIMITS)
            if not matcher.is_error():
                matcher.deep_copy().compute_bitmask()  # the first mask builds the lexer
            if matcher.is_error():
                why = matcher.get_error().partition("\n<non-verbose/>")[0]
                raise InvalidRequest(
                    f"{constraint.field} cannot be compiled: {why[:300]}", param=constraint.field
                )
            return CompiledGrammar(
                matcher, constraint.field, self._rows, self.counts, self._closings
            )
        finally:
            with self._lock:
                self._running -= 1
