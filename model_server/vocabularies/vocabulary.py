"""A vocabulary of any kind, as the tokenizer.json of the `tokenizers` library.

What every kind has in common: control and user-defined tokens, and what stands around a text.
Knows no files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sax.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedToken:
    """A token that is matched as a whole, before any other cutting of the text."""

    id: int
    text: str
    control: bool  # never text: neither recognised in a prompt nor shown in an answer
    strips_left: bool = False  # swallows the white space before it
    strips_right: bool = False
    whole_word: bool = False
    normalized: bool = False  # matched in the text as the normaliser leaves it

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
    """One tokenizer: how text is cut, joined, framed and put together again."""

    model: Mapping[str, Any]  # the `model` part of tokenizer.json, with every token in it
    added: tuple[AddedToken, ...]
    normalizer: Mapping[str, Any] | None = None
    pre_tokenizer: Mapping[str, Any] | None = None
    decoder: Mapping[str, Any]
    bos: str | None = None
    eos: str | None = None
    adds_bos: bool = False
    adds_eos: bool = False  # what encoders end a text with; a prompt never ends so

    def serialized(self) -> str:
        """The text of tokenizer.json."""
        before = self.bos if self.adds_bos else None
        after = self.eos if self.adds_eos else None
        return json.dumps(
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
            },
            ensure_ascii=False,
        )

    def _ids(self) -> dict[str, int]:
        vocab = self.model["vocab"]
        if isinstance(vocab, list):  # Unigram: pieces and scores by id
            vocab = {piece: token_id for token_id, (piece, _) in enumerate(vocab)}
        return {**vocab, **{token.text: token.id for token in self.added}}


def in_sequence(steps: Iterable[Mapping[str, Any]], key: str) -> Mapping[str, Any] | None:
    """One part of tokenizer.json from several; `key` is what its list is called."""
    steps = list(steps)
    if len(steps) < 2:
        return steps[0] if steps else None
    return {"type": "Sequence", key: steps}


def check_different(tokens: Iterable[str]) -> None:
    """Raises CheckpointError if two tokens are written the same."""
    seen: set[str] = set()
    for token in tokens:
        if token in seen:
            raise CheckpointError(f"its vocabulary has {token!r} twice")
        seen.add(token)


def _frame(before: str | None, after: str | None, ids: Mapping[str, int]) -> dict[str, Any] | None:
    """What stands around a text; for pairs, around each of the two."""
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
