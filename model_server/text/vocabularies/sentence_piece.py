"""Builds SentencePiece vocabularies, Unigram and BPE, that encode as the original library does.

A space is written U+2581, and a text usually starts with one. BPE pieces merge by score: two
neighbours become one if together they form a piece, the best score first; Gemma 4 lists the merges
instead. Pure; callers read the pieces from tokenizer.model or GGUF.
One known difference: a text that is exactly one user-defined piece gets no leading space.
"""

from __future__ import annotations

import base64
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from model_server.text.vocabularies.vocabulary import (
    AddedToken,
    Vocabulary,
    bpe_model,
    check_different,
    in_sequence,
    merges_into,
)
from sax.errors import CheckpointError

SPACE = "\u2581"
_ALL = 1 << 20  # strips any number of spaces


class PieceKind(IntEnum):
    """Types of pieces; GGUF uses the same numbers."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """A SentencePiece model: pieces by id, and normalisation settings."""

    unigram: bool  # else BPE
    texts: Sequence[str]
    scores: Sequence[float]
    kinds: Sequence[int]
    byte_fallback: bool  # unknown characters become bytes
    charsmap: bytes = b""  # compiled character map of SentencePiece's normaliser
    starts_with_space: bool = True
    collapses_spaces: bool = False
    escapes_spaces: bool = True
    merges: Sequence[Sequence[str]] | None = None  # of BPE, in order; None: by score
    # Text after a control token also starts with a space, as if it were a separate text.
    every_part_starts: bool = True

    def unknown(self) -> int | None:
        return next(self.of(PieceKind.UNKNOWN), None)

    def of(self, *kinds: PieceKind) -> Iterator[int]:
        return (token_id for token_id, kind in enumerate(self.kinds) if kind in kinds)

    def own_tokens(self) -> Iterator[AddedToken]:
        """Yield the pieces that are matched as a whole."""
        for token_id in self.of(PieceKind.CONTROL, PieceKind.UNKNOWN):
            yield AddedToken(id=token_id, text=self.texts[token_id], control=True)
        for token_id in self.of(PieceKind.USER_DEFINED):
            # SentencePiece matches these after spaces have become U+2581.
            text = self.texts[token_id]
            yield AddedToken(id=token_id, text=text, control=False, normalized=True)


def sentence_piece(pieces: Pieces, added: Sequence[AddedToken] = (), **frame: Any) -> Vocabulary:
    """Build the vocabulary; `added` overrides pieces of the same id. `frame`: see `Vocabulary`.

    Raises CheckpointError if the pieces are inconsistent.
    """
    check_different(pieces.texts)
    own = {token.id: token for token in pieces.own_tokens()}
    tokens = own | {token.id: token for token in added}
    model = _unigram(pieces) if pieces.unigram else _bpe(pieces, added)
    return Vocabulary(
        model=model,
        added=tuple(sorted(tokens.values(), key=lambda token: token.id)),
        normalizer=in_sequence(_normalizers(pieces), "normalizers"),
        pre_tokenizer=in_sequence(_pre_tokenizers(pieces), "pretokenizers"),
        decoder=_decoder(pieces),
        **frame,
    )


def _bpe(pieces: Pieces, added: Sequence[AddedToken]) -> dict[str, Any]:
    unknown = pieces.unknown()
    merges = pieces.merges
    if merges is None:
        by_score = sorted(pieces.of(PieceKind.NORMAL), key=lambda i: (-pieces.scores[i], i))
        merges = merges_into([pieces.texts[token_id] for token_id in by_score])
    return bpe_model(
        {text: token_id for token_id, text in enumerate(pieces.texts)},
        merges,
        added,
        unknown=None if unknown is None else pieces.texts[unknown],
        byte_fallback=pieces.byte_fallback,
    )


def _unigram(pieces: Pieces) -> dict[str, Any]:
    unknown = pieces.unknown()
    if unknown is None:
        raise CheckpointError("it has no piece for unknown characters")
    return {
        "type": "Unigram",
        "unk_id": unknown,
        "vocab": [[text, float(s)] for text, s in zip(pieces.texts, pieces.scores, strict=True)],
        "byte_fallback": pieces.byte_fallback,
    }


def _normalizers(pieces: Pieces) -> Iterator[dict[str, Any]]:
    if pieces.charsmap:
        charsmap = base64.b64encode(pieces.charsmap).decode()
        yield {"type": "Precompiled", "precompiled_charsmap": charsmap}
    if pieces.collapses_spaces:
        yield _replace(rf"\A +|[ {SPACE}]+\z", "")
        yield _replace(" {2,}", " ")
    if pieces.escapes_spaces:
        yield {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    if pieces.starts_with_space and pieces.every_part_starts:
        # `tokenizers` also normalises user-defined pieces, which must stay unchanged.
        own = "|".join(_literal(pieces.texts[i]) for i in pieces.of(PieceKind.USER_DEFINED))
        yield _replace(rf"\A(?!(?:{own})\z)" if own else r"\A", _start(pieces))


def _start(pieces: Pieces) -> str:
    return SPACE if pieces.escapes_spaces else " "


def _literal(text: str) -> str:
    return re.escape(text.replace(" ", SPACE))


def _replace(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def _pre_tokenizers(pieces: Pieces) -> Iterator[dict[str, Any]]:
    if pieces.starts_with_space and not pieces.every_part_starts:
        yield {
            "type": "Metaspace",
            "replacement": SPACE,
            "prepend_scheme": "first",
            "split": False,
        }
    if pieces.unigram and (cut := _cut_of_literals(pieces)):
        yield {
            "type": "Split",
            "pattern": {"Regex": cut},
            "behavior": "MergedWithPrevious",
            "invert": False,
        }


def _cut_of_literals(pieces: Pieces) -> str:
    """Return a split pattern that ends inside every piece that plain text must not produce.

    Unigram in `tokenizers` matches any piece in text, `</s>` and `<0x0A>` included. Splitting such
    text between two characters that are adjacent in no ordinary piece prevents that.
    """
    neighbours = {
        pair
        for i in pieces.of(PieceKind.NORMAL, PieceKind.USER_DEFINED)
        for pair in zip(pieces.texts[i], pieces.texts[i][1:], strict=False)
    }
    rests: dict[str, list[str]] = defaultdict(list)
    for token_id in pieces.of(
        PieceKind.CONTROL, PieceKind.UNKNOWN, PieceKind.UNUSED, PieceKind.BYTE
    ):
        text = pieces.texts[token_id]
        places = [i for i in range(1, len(text)) if (text[i - 1], text[i]) not in neighbours]
        cut = places[0] if places else 1
        rests[text[:cut]].append(text[cut:])
    return "|".join(
        f"{_literal(start)}(?={'|'.join(map(_literal, ends))})" for start, ends in rests.items()
    )


def _decoder(pieces: Pieces) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if strip := _ALL if pieces.collapses_spaces else int(pieces.starts_with_space):
        steps.append({"type": "Strip", "content": " ", "start": strip, "stop": 0})
    return {"type": "Sequence", "decoders": steps}
