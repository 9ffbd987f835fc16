"""The vocabulary of a model as llguidance reads it, made once per model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import llguidance


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
