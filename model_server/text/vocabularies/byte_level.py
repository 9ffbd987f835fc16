"""Builds byte-level BPE vocabularies; a token is a byte string, written in GPT-2's alphabet.

From ranks (tiktoken: two neighbours merge if together they form a token, the lowest rank first) or
from merges (GPT-2, GGUF: an ordered list of pairs). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from model_server.text.token_bytes import byte_alphabet
from model_server.text.vocabularies.cutting import GPT2_WORDS, Cutting
from model_server.text.vocabularies.vocabulary import (
    AddedToken,
    Vocabulary,
    bpe_model,
    in_sequence,
    merges_into,
)
from sax.errors import CheckpointError

_LETTERS = [letter for letter, _ in sorted(byte_alphabet().items(), key=lambda item: item[1])]
_LETTER_OF = dict(enumerate(_LETTERS))


def written(token: bytes) -> str:
    """Write a token's bytes in GPT-2's alphabet."""
    return token.decode("latin-1").translate(_LETTER_OF)


def byte_level(
    vocab: Mapping[str, int],
    merges: Sequence[Sequence[str]],
    added: Sequence[AddedToken],
    cutting: Cutting,
    **frame: Any,
) -> Vocabulary:
    """Build from merges; `frame`: bos, eos, adds_bos and adds_eos of `Vocabulary`."""
    return Vocabulary(
        model=bpe_model(vocab, merges, added, ignore_merges=cutting.whole_words_first),
        added=tuple(added),
        normalizer=cutting.normalizer,
        pre_tokenizer=in_sequence(cutting.steps, "pretokenizers"),
        decoder=GPT2_WORDS,
        **frame,
    )


def from_ranks(
    ranks: Mapping[bytes, int],
    added: Sequence[AddedToken],
    cutting: Cutting,
    *,
    first_id: int = 0,
    **frame: Any,
) -> Vocabulary:
    """Build from tiktoken ranks; ids are ranks plus `first_id`. Raises CheckpointError."""
    if missing := [byte for byte in range(256) if bytes([byte]) not in ranks]:
        raise CheckpointError(f"it has no token for the byte {missing[0]}: it is damaged")
    taken = {rank + first_id for rank in ranks.values()}
    if clash := next((token for token in added if token.id in taken), None):
        raise CheckpointError(f"{clash.text!r} has id {clash.id}, which another token also has")
    vocab = {written(token): rank + first_id for token, rank in ranks.items()}
    return byte_level(
        vocab,
        merges_into(sorted(vocab, key=vocab.__getitem__)),
        added,
        # tiktoken looks a whole word up before it merges.
        Cutting(cutting.steps, cutting.normalizer, whole_words_first=True),
        **frame,
    )
