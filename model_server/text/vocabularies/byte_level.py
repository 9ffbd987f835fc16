"""Builds byte-level BPE vocabularies; a token is a byte string, written in GPT-2's alphabet.

From ranks (tiktoken: two neighbours merge if together they form a token, the lowest rank first) or
from merges (GPT-2, GGUF: an ordered list of pairs). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from model_server.text.token_bytes import byte_alphabet
from model_server.text.vocabularies.cutting import GPT2_WORDS, Cutting
from model_server.text.vocabularies.vocabulary import AddedToken, Vocabulary, in_sequence
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
        model={
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": cutting.whole_words_first,
            "vocab": dict(vocab) | {token.text: token.id for token in added},
            "merges": merges,
        },
        added=tuple(added),
        normalizer=cutting.normalizer,
        pre_tokenizer=in_sequence(cutting.steps, "pretokenizers"),
        decoder=GPT2_WORDS,
        **frame,
    )


def merges_of_ranks(ranks: Mapping[bytes, int]) -> list[tuple[str, str]]:
    """Return every pair of tokens that forms a token, by the rank of the latter."""
    letters = {token: written(token) for token in ranks}
    return [
        (letters[token[:cut]], letters[token[cut:]])
        for token in sorted(ranks, key=ranks.__getitem__)
        for cut in range(1, len(token))
        if token[:cut] in ranks and token[cut:] in ranks
    ]


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
    return byte_level(
        {written(token): rank + first_id for token, rank in ranks.items()},
        merges_of_ranks(ranks),
        added,
        # tiktoken looks a whole word up before it merges.
        Cutting(cutting.steps, cutting.normalizer, whole_words_first=True),
        **frame,
    )
