"""Serialises a vocabulary of any kind as the tokenizer.json of the `tokenizers` library.

Covers what all kinds share: control and user-defined tokens, and the tokens added around a text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from sax.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedToken:
    """A token that is matched as a whole, before pre-tokenization."""

    id: int
    text: str
    control: bool  # never text: neither recognised in a prompt nor shown in output
    strips_left: bool = False  # swallows preceding white space
    strips_right: bool = False
    whole_word: bool = False
    normalized: bool = False  # matched in the normalised text

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "content": self.text,
            "single_word": self.whole_word,
            "lstrip": self.strips_left,
            "rstrip": self.strips_right,
            "normalized": self.normalized,
            "special": self.control,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The parts of a tokenizer.json, and the tokens added around a text."""

    model: Mapping[str, Any]  # the `model` part of tokenizer.json, including added tokens
    added: tuple[AddedToken, ...]
    normalizer: Mapping[str, Any] | None = None
    pre_tokenizer: Mapping[str, Any] | None = None
    decoder: Mapping[str, Any]
    bos: str | None = None
    eos: str | None = None
    adds_bos: bool = False
    adds_eos: bool = False  # for encoders; a prompt never ends with eos

    def serialized(self) -> str:
        before = self.bos if self.adds_bos else None
        after = self.eos if self.adds_eos else None
        # Ten times as fast as `json`, which would stop all threads for a second.
        made = msgspec.json.encode(
            {
                "version": "1.0",
                "truncation": None,
                "padding": None,
                "added_tokens": [token.as_json() for token in self.added],
                "normalizer": self.normalizer,
                "pre_tokenizer": self.pre_tokenizer,
                "post_processor": _frame(before, after, self._ids()),
                "decoder": self.decoder,
                "model": self.model,
            }
        )
        return made.decode()

    def _ids(self) -> dict[str, int]:
        vocab = self.model["vocab"]
        if isinstance(vocab, list):  # Unigram: pieces and scores by id
            vocab = {piece: token_id for token_id, (piece, _) in enumerate(vocab)}
        return {**vocab, **{token.text: token.id for token in self.added}}


def bpe_model(
    vocab: Mapping[str, int],
    merges: Sequence[Sequence[str]],
    added: Iterable[AddedToken],
    *,
    unknown: str | None = None,
    byte_fallback: bool = False,
    ignore_merges: bool = False,
) -> dict[str, Any]:
    """Return the `model` part of a byte-pair encoding."""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": unknown is not None,
        "byte_fallback": byte_fallback,
        "ignore_merges": ignore_merges,
        "vocab": {**vocab, **{token.text: token.id for token in added}},
        "merges": merges,
    }


def merges_into(tokens: Sequence[str]) -> list[tuple[str, str]]:
    """Return every pair of tokens that forms a token, in the order of the tokens formed."""
    known = set(tokens)
    return [
        (token[:cut], token[cut:])
        for token in tokens
        for cut in range(1, len(token))
        if token[:cut] in known and token[cut:] in known
    ]


def in_sequence(steps: Iterable[Mapping[str, Any]], key: str) -> Mapping[str, Any] | None:
    """Combine several steps into one part of tokenizer.json; `key` names its list."""
    steps = list(steps)
    if len(steps) < 2:
        return steps[0] if steps else None
    return {"type": "Sequence", key: steps}


def check_different(tokens: Sequence[str]) -> None:
    if len(set(tokens)) == len(tokens):
        return
    seen: set[str] = set()
    for token in tokens:
        if token in seen:
            raise CheckpointError(f"its vocabulary has {token!r} twice")
        seen.add(token)


def _frame(before: str | None, after: str | None, ids: Mapping[str, int]) -> dict[str, Any] | None:
    """Return the template that adds tokens around a text, or around each text of a pair."""
    if before is None and after is None:
        return None

    def framed(name: str, kind: int) -> list[dict[str, Any]]:
        parts = [{"Sequence": {"id": name, "type_id": kind}}]
        if before is not None:
            parts.insert(0, {"SpecialToken": {"id": before, "type_id": kind}})
        if after is not None:
            parts.append({"SpecialToken": {"id": after, "type_id": kind}})
        return parts

    tokens = {token for token in (before, after) if token is not None}
    return {
        "type": "TemplateProcessing",
        "single": framed("A", 0),
        "pair": [*framed("A", 0), *framed("B", 1)],
        "special_tokens": {
            token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in sorted(tokens)
        },
    }
