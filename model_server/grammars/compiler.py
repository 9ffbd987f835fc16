"""Compiles the constraints of requests, each on a thread of its own.

A process with limits reads and compiles each one first (`reading`), so that none reaches this
process that takes long, needs more stack than there is, or cannot be compiled. The last ones
compiled are kept.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import cache
from typing import Literal, NamedTuple, Protocol

import llguidance
import msgspec

from model_server.engine.worker import Worker
from model_server.grammars.closing import Closings
from model_server.grammars.constraint import Constraint
from model_server.grammars.grammar_state import CompiledGrammar, GrammarStateCounts
from model_server.grammars.matcher import matcher_of
from model_server.grammars.reading_frames import (
    MAX_ANSWER,
    CheckAsk,
    ConstraintAnswer,
    ConstraintAsk,
)
from model_server.sharing.confined.lanes import LaneKind, Lanes
from model_server.sharing.confined.pipe import framed
from model_server.sharing.confined.process import ConfinedProcess
from sax.errors import InvalidRequest, SaxError, Unavailable, UnsupportedParameter

QUICK_S = 0.25  # processor time of a constraint in the quick lane: usual ones take milliseconds
SLOW_S = 5.0  # and in the slow one
_WAIT_S = 5.0
_WORKER = "model_server.grammars.reading_worker"
_DECODER = msgspec.msgpack.Decoder(ConstraintAnswer)


class _ConstraintProcess(ConfinedProcess):
    def __init__(self, seconds: float, niceness: int) -> None:
        super().__init__(_WORKER, seconds, niceness, doing="compiles it", most=MAX_ANSWER)

    def answer(self, ask: ConstraintAsk | CheckAsk) -> ConstraintAnswer:
        """Raises ProcessEnded, ProcessStarved, OSError, or InvalidRequest for text with lone
        surrogates."""
        try:
            message = framed(msgspec.msgpack.encode(ask))
        except UnicodeEncodeError as exc:
            field = "json_schema" if isinstance(ask, CheckAsk) else ask.field
            raise InvalidRequest(f"{field} is not Unicode text: {exc}", param=field) from exc
        return self.exchange(message, _DECODER.decode)


class AnswerVerdict(NamedTuple):
    """The result of checking a finished answer against its schema."""

    kind: Literal["kept", "broken", "unchecked"]
    why: str = ""  # not


class ConstraintReader:
    """Thread-safe. Its processes start with the first constraint and end with this one."""

    def __init__(self) -> None:
        self._lanes = Lanes(
            LaneKind[ConstraintAsk | CheckAsk, ConstraintAnswer](
                name="grammars",
                doing="to compile",
                process=_ConstraintProcess,
                quick_s=QUICK_S,
                slow_s=SLOW_S,
                niceness=5,
                wait_s=_WAIT_S,
                refused=_refused,
                ended=lambda how: ConstraintAnswer("ended", how),
                spent=lambda answer: answer.kind == "ended",
            )
        )

    async def read(self, constraint: Constraint, specials: Mapping[str, int]) -> ConstraintAnswer:
        """Return the grammar in llguidance's own form, which was compiled once within limits.

        specials: control tokens by their text. Raises InvalidRequest, Unavailable.
        """
        field = constraint.field
        ask = ConstraintAsk(field, constraint.value, dict(specials))
        key = hashlib.sha256(repr(constraint).encode(errors="replace")).digest()
        answer = await asyncio.wrap_future(self._lanes.submit(key, ask))
        if answer.kind == "refused":
            raise InvalidRequest(answer.text, param=field)
        if answer.kind == "ended":
            raise InvalidRequest(f"{field} {answer.text}: simplify it", param=field)
        return answer

    async def check(self, schema: str, answer: str) -> AnswerVerdict:
        """Check a finished answer against its schema, within the same limits."""
        key = hashlib.sha256(schema.encode(errors="replace")).digest()
        try:
            told = await asyncio.wrap_future(self._lanes.submit(key, CheckAsk(schema, answer)))
        except SaxError as exc:
            return AnswerVerdict("unchecked", f"it could not be checked: {exc.text}")
        if told.kind != "checked":
            return AnswerVerdict("unchecked", f"it could not be checked: {told.text}")
        return AnswerVerdict("broken" if told.text else "kept", told.text)

    def warm(self, specials: Mapping[str, int]) -> None:
        """Have the quick process know a model's control tokens before its first constraint."""
        self._lanes.submit(b"", ConstraintAsk("json_object", value=True, specials=dict(specials)))


def _refused(why: str, retry_after_s: float) -> Unavailable:
    # Not QueueFull: the caller would send it to another replica, with the same grammar.
    return Unavailable(why, retry_after_s=retry_after_s)


@cache
def constraint_reader() -> ConstraintReader:
    """Return the reader of this process."""
    return ConstraintReader()


class GrammarTokens(Protocol):
    """The tokens of a model; every tokenizer is one."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def bos_id(self) -> int | None: ...

    @property
    def eos_ids(self) -> frozenset[int]: ...

    @property
    def control_ids(self) -> frozenset[int]:
        """Tokens that stand for no text."""
        ...

    def encode_continuation(self, text: str) -> list[int]: ...

    def token_bytes(self, token_id: int) -> bytes: ...


class _Wrapped(llguidance.TokenizerWrapper):
    """Adapts the vocabulary to llguidance's interface of a tokenizer."""

    def __init__(self, vocabulary: GrammarTokens, texts: Sequence[bytes]) -> None:
        self._vocabulary = vocabulary
        self.eos_token_id = min(vocabulary.eos_ids)
        self.bos_token_id = vocabulary.bos_id
        self.tokens = texts
        self.special_token_ids = sorted(vocabulary.control_ids | vocabulary.eos_ids)
        self.is_tokenizer_wrapper = True

    def __call__(self, text: str) -> list[int]:
        return self._vocabulary.encode_continuation(text)


def ll_tokenizer(
    vocabulary: GrammarTokens, texts: Sequence[bytes]
) -> llguidance.LLTokenizer | None:
    """Return the tokens of a model; texts: one for each row of its embedding.

    None for a model without an end token: no answer of it could end. Takes tenths of a second.
    """
    if not vocabulary.eos_ids:
        return None
    wrapped = _Wrapped(vocabulary, texts)
    return llguidance.LLTokenizer(wrapped, n_vocab=len(texts), eos_token=sorted(vocabulary.eos_ids))


_KEPT = 128
STACK = 64 << 20  # bytes: eight times what was enough in the process that compiled it first
_QUIET_S = 2.0  # before the vocabulary is read, which the first plain requests need not wait for


class _GrammarVocabulary(NamedTuple):
    """A model's tokens as constraints need them."""

    tokenizer: llguidance.LLTokenizer
    closings: Closings


class GrammarCompiler:
    """Compiles for one model. Its methods are for the event loop.

    Reading the vocabulary takes tenths of a second. A thread does it soon after the load, or at
    once if a constraint comes first.
    """

    def __init__(self, vocabulary: GrammarTokens, rows: int) -> None:
        """rows: of the model's embedding."""
        self._tokens = vocabulary
        self._specials = {
            vocabulary.token_bytes(token).decode(errors="replace"): token
            for token in vocabulary.control_ids
            if token < rows
        }
        self._rows = rows
        self.counts = GrammarStateCounts()
        self._kept: OrderedDict[Constraint, CompiledGrammar] = OrderedDict()
        self._starting = threading.Lock()
        self.reading: Future[_GrammarVocabulary] | None = None  # of the vocabulary
        if vocabulary.eos_ids:
            later = threading.Timer(_QUIET_S, _start, (weakref.ref(self),))
            later.daemon = True
            later.start()

    async def compile(self, constraint: Constraint) -> CompiledGrammar:
        """Return the compiled constraint.

        Raises InvalidRequest for one that is wrong or exceeds a limit, Unavailable while others
        that are slow are being compiled, UnsupportedParameter for a model without an end token.
        """
        if constraint in self._kept:
            self._kept.move_to_end(constraint)
            return self._kept[constraint]
        field = constraint.field
        if not self._tokens.eos_ids:
            raise UnsupportedParameter(
                f"{field} is not supported by this model: it has no end token", param=field
            )
        coming = self.start()
        read = await constraint_reader().read(constraint, self._specials)
        # Shielded: a caller that leaves must not cancel it for all others.
        tokenizer, closings = await asyncio.shield(asyncio.wrap_future(coming))
        job = Worker.once("grammar", lambda: matcher_of(read.text, tokenizer, field), stack=STACK)
        matcher = await asyncio.wrap_future(job)
        made = CompiledGrammar(matcher, field, self._rows, self.counts, closings)
        made.partly = read.partly
        self._kept[constraint] = made
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return made

    def start(self) -> Future[_GrammarVocabulary]:
        """Begin to read the vocabulary, unless it was begun. Thread-safe."""
        with self._starting:
            if self.reading is None:
                self.reading = Worker.once("grammar vocabulary", self._read)
            return self.reading

    def _read(self) -> _GrammarVocabulary:
        constraint_reader().warm(self._specials)  # in its own process, meanwhile
        texts = [self._tokens.token_bytes(token) for token in range(self._rows)]
        tokenizer = ll_tokenizer(self._tokens, texts)
        assert tokenizer is not None, "it has an end token"
        return _GrammarVocabulary(tokenizer, Closings(tokenizer, texts))


def _start(compiler: weakref.ref[GrammarCompiler]) -> None:
    """Begin to read a vocabulary, unless its model is gone."""
    if (found := compiler()) is not None:
        found.start()
