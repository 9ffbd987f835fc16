"""Compiles the constraints of requests, each on a thread of its own.

A process with limits reads and compiles each one first (`reading`), so that none reaches this
process that takes long, needs more stack than there is, or cannot be compiled. The last ones
compiled are kept.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from model_server.engine.worker import Worker
from model_server.grammars.closing import Closings
from model_server.grammars.constraint import Constraint
from model_server.grammars.guide import CompiledGrammar, GuideCounts
from model_server.grammars.matcher import matcher_of
from model_server.grammars.reading.reader import constraint_reader
from model_server.grammars.vocabulary import GrammarTokens, ll_tokenizer
from sax.errors import UnsupportedParameter

_KEPT = 128
STACK = 64 << 20  # bytes: eight times what was enough in the process that compiled it first


class GrammarCompiler:
    """Compiles for one model. Its methods are for the event loop."""

    def __init__(self, vocabulary: GrammarTokens, rows: int) -> None:
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
        self.counts = GuideCounts()
        self._kept: OrderedDict[Constraint, CompiledGrammar] = OrderedDict()
        if self._tokenizer is not None:
            constraint_reader().warm(self._specials)

    async def compile(self, constraint: Constraint) -> CompiledGrammar:
        """Return the compiled constraint.

        Raises InvalidRequest for one that is wrong or exceeds a limit, Unavailable while others
        that are slow are being compiled, UnsupportedParameter for a model without an end token.
        """
        if constraint in self._kept:
            self._kept.move_to_end(constraint)
            return self._kept[constraint]
        field = constraint.field
        if (tokenizer := self._tokenizer) is None:
            raise UnsupportedParameter(
                f"{field} is not supported by this model: it has no end token", param=field
            )
        grammar = await constraint_reader().read(constraint, self._specials)
        job = Worker.once("grammar", lambda: matcher_of(grammar, tokenizer, field), stack=STACK)
        matcher = await asyncio.wrap_future(job)
        made = CompiledGrammar(matcher, field, self._rows, self.counts, self._closings)
        self._kept[constraint] = made
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return made
