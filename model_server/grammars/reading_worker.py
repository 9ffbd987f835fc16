"""The process that reads constraints, within limits of time, memory and stack.

    python -m model_server.grammars.reading_worker SECONDS NICENESS

Reads requests from standard input and writes answers to standard output until the input ends. A
constraint becomes a grammar in llguidance's own form, which is compiled here before the server
does so: one that overflows the stack ends this process, which has an eighth of the stack that the
server's threads have. Finished answers are checked here, too, by what no grammar holds.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import llguidance
import msgspec
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for
from referencing import Registry

from model_server.grammars.constraint import Constraint, read_constraint
from model_server.grammars.matcher import matcher_of
from model_server.grammars.reading_frames import CheckAsk, ConstraintAnswer, ConstraintAsk
from model_server.sharing.confined.limits import confine, run
from model_server.sharing.confined.pipe import framed
from sax.errors import InvalidRequest

MEMORY = 1 << 30  # bytes that this process may allocate
STACK = 8 << 20  # bytes: chains of some 2,500 rules
_ADDRESSES = 3 << 30
_KEPT = 8  # models
# Knows no schema but those of the standard, so that nothing is fetched.
_NOWHERE: Any = Registry()
_LONGEST = 300  # characters of a message, which quotes the answer


class _ByteVocabulary(llguidance.TokenizerWrapper):
    """A vocabulary of single bytes, with the control tokens of a model in their places."""

    def __init__(self, specials: Mapping[str, int]) -> None:
        rows = max([256, *specials.values()]) + 2
        self.tokens = [bytes([byte]) for byte in range(256)] + [b""] * (rows - 256)
        for text, token in specials.items():
            self.tokens[token] = text.encode()
        self.bos_token_id = None
        self.eos_token_id = rows - 1
        self.special_token_ids = [*specials.values(), self.eos_token_id]
        self.is_tokenizer_wrapper = True

    def __call__(self, text: str) -> list[int]:
        return [*text.encode()]


def violation_of(schema: str, answer: str) -> str:
    """Return how an answer breaks a schema, in one line; "": it keeps to it.

    Takes time, memory and stack as schema and answer please. Raises ValueError for a schema that
    cannot be read as one.
    """
    known = json.loads(schema)
    try:
        value = json.loads(answer)
    except ValueError as exc:
        return f"it is no JSON: {exc}"
    try:
        validator = validator_for(known, default=Draft202012Validator)(known, registry=_NOWHERE)
        broken: Any = next(validator.iter_errors(value), None)
    except Exception as exc:  # the library raises what a schema makes it stumble over
        raise ValueError(f"{type(exc).__name__}: {exc}") from exc
    if broken is None:
        return ""
    return f"{broken.json_path}: {broken.message}"[:_LONGEST]


class GrammarReader:
    def __init__(self) -> None:
        self._tokenizers: OrderedDict[bytes, llguidance.LLTokenizer] = OrderedDict()

    def answer(self, ask: ConstraintAsk | CheckAsk) -> ConstraintAnswer:
        try:
            if isinstance(ask, CheckAsk):
                return ConstraintAnswer("checked", violation_of(ask.schema, ask.answer))
            return self._compiled(ask)
        except InvalidRequest as exc:
            return ConstraintAnswer("refused", exc.text)
        except (ValueError, RecursionError) as exc:
            return ConstraintAnswer("refused", str(exc))
        except MemoryError:
            return ConstraintAnswer("ended", f"needs more than {MEMORY >> 20} MiB")

    def _compiled(self, ask: ConstraintAsk) -> ConstraintAnswer:
        """Raises InvalidRequest."""
        constraint = Constraint(ask.field, ask.value)
        exact = read_constraint(constraint, ask.specials)
        try:
            matcher_of(exact.grammar, self._tokenizer(ask.specials), ask.field)
        except InvalidRequest as exc:
            if "oneOf" not in exc.text:
                raise
            # Which of them hold together cannot be told, so any may; the answer is checked.
            loose = read_constraint(constraint, ask.specials, any_of_one=True)
            matcher_of(loose.grammar, self._tokenizer(ask.specials), ask.field)
            return ConstraintAnswer("grammar", loose.grammar, partly=True)
        return ConstraintAnswer("grammar", exact.grammar, partly=bool(exact.dropped))

    def _tokenizer(self, specials: Mapping[str, int]) -> llguidance.LLTokenizer:
        """Takes a tenth of a second for a model that is new here."""
        key = hashlib.sha256(msgspec.msgpack.encode(specials)).digest()
        if key not in self._tokenizers:
            tokens = _ByteVocabulary(specials)
            self._tokenizers[key] = llguidance.LLTokenizer(
                tokens, n_vocab=len(tokens.tokens), eos_token=tokens.eos_token_id
            )
            if len(self._tokenizers) > _KEPT:
                self._tokenizers.popitem(last=False)
        self._tokenizers.move_to_end(key)
        return self._tokenizers[key]


def main() -> None:
    confine(MEMORY, _ADDRESSES)
    reader, decoder = GrammarReader(), msgspec.msgpack.Decoder(ConstraintAsk | CheckAsk)
    encode = msgspec.msgpack.encode
    threading.stack_size(STACK)
    thread = threading.Thread(
        target=run, args=(lambda frame: framed(encode(reader.answer(decoder.decode(frame)))),)
    )
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
