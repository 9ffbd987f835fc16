"""Builds SentencePiece vocabularies, Unigram and BPE, that encode as the original library does.

A space is written U+2581, and a text usually starts with one. BPE pieces merge by score: two
neighbours become one if together they form a piece, the best score first; Gemma 4 lists the merges
instead. Pure; the pieces come from tokenizer.model, which is read here, or from GGUF.
One known difference: a text that is exactly one user-defined piece gets no leading space.
"""

from __future__ import annotations

import base64
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

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


# SentencePiece's own file (tokenizer.model, spiece.model) is a protocol buffer, its schema public;
# only the fields that encoding needs are declared here. Hand-written because sentencepiece (0.2)
# does not expose a model's normaliser, except through generated messages that it registers for the
# whole process, where another package's copy of the schema may already be.
_FIELD = descriptor_pb2.FieldDescriptorProto
_UNIGRAM, _BPE, _WORD, _CHAR = 1, 2, 3, 4

# message -> field -> (number, type or message, default)
_MESSAGES: dict[str, dict[str, tuple[int, int | str, str | None]]] = {
    "Piece": {
        "piece": (1, _FIELD.TYPE_STRING, None),
        "score": (2, _FIELD.TYPE_FLOAT, None),
        "type": (3, _FIELD.TYPE_INT32, "1"),
    },
    "TrainerSpec": {
        "model_type": (3, _FIELD.TYPE_INT32, "1"),
        "treat_whitespace_as_suffix": (24, _FIELD.TYPE_BOOL, "false"),
        "byte_fallback": (35, _FIELD.TYPE_BOOL, "false"),
        "bos_id": (41, _FIELD.TYPE_INT32, "1"),
        "eos_id": (42, _FIELD.TYPE_INT32, "2"),
    },
    "NormalizerSpec": {
        "precompiled_charsmap": (2, _FIELD.TYPE_BYTES, None),
        "add_dummy_prefix": (3, _FIELD.TYPE_BOOL, "true"),
        "remove_extra_whitespaces": (4, _FIELD.TYPE_BOOL, "true"),
        "escape_whitespaces": (5, _FIELD.TYPE_BOOL, "true"),
    },
    "Model": {
        "pieces": (1, "Piece", None),
        "trainer_spec": (2, "TrainerSpec", None),
        "normalizer_spec": (3, "NormalizerSpec", None),
        "denormalizer_spec": (5, "NormalizerSpec", None),
    },
}


def parse_model(data: bytes) -> Any:
    """Parse the file. Raises CheckpointError if it is damaged or of another kind."""
    model = _model_class()()
    try:
        model.ParseFromString(data)
    except (DecodeError, UnicodeDecodeError) as exc:
        raise CheckpointError(f"it is not a SentencePiece model, or truncated: {exc}") from exc
    if not (model.pieces and model.HasField("trainer_spec") and model.HasField("normalizer_spec")):
        raise CheckpointError("it is not a SentencePiece model, or truncated: parts are missing")
    return model


def pieces_of(model: Any, *, every_part_starts: bool = True) -> Pieces:
    """Return the pieces of a parsed file. Raises CheckpointError for unsupported features."""
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    if trainer.model_type not in (_UNIGRAM, _BPE, _CHAR):
        raise CheckpointError("its pieces are whole words; supported are Unigram, BPE and Char")
    if trainer.treat_whitespace_as_suffix:
        raise CheckpointError("its pieces end with spaces, which is not supported")
    if model.denormalizer_spec.precompiled_charsmap:
        raise CheckpointError("it rewrites decoded text, which is not supported")
    return Pieces(
        unigram=trainer.model_type == _UNIGRAM,
        texts=_texts(model),
        scores=[piece.score for piece in model.pieces],
        kinds=_kinds(model),
        byte_fallback=trainer.byte_fallback,
        charsmap=normalizer.precompiled_charsmap,
        starts_with_space=normalizer.add_dummy_prefix,
        collapses_spaces=normalizer.remove_extra_whitespaces,
        escapes_spaces=normalizer.escape_whitespaces,
        every_part_starts=every_part_starts,
    )


def _texts(model: Any) -> list[str]:
    texts = [piece.piece for piece in model.pieces]
    if strange := next((text for text in texts if not isinstance(text, str)), None):
        raise CheckpointError(f"its piece {strange!r} is not UTF-8 text")  # bytes, from protobuf
    return texts


def _kinds(model: Any) -> list[int]:
    kinds = [piece.type for piece in model.pieces]
    if strange := next((kind for kind in kinds if kind not in set(PieceKind)), None):
        raise CheckpointError(f"it has a piece of an unknown kind, {strange}")
    return kinds


def own_token(model: Any, name: str) -> str | None:
    """Return the text of the piece with the id in field `name` (bos_id or eos_id), if any."""
    token_id = getattr(model.trainer_spec, name)
    return model.pieces[token_id].piece if 0 <= token_id < len(model.pieces) else None


@cache
def _model_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="sentence_piece", package="sp", syntax="proto2")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, default) in fields.items():
            _add_field(message, field, number, kind, default)
    pool = descriptor_pool.DescriptorPool()  # private: the default one may hold the same schema
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("sp.Model"))


def _add_field(message: Any, name: str, number: int, kind: int | str, default: str | None) -> None:
    field = message.field.add(name=name, number=number, label=_FIELD.LABEL_OPTIONAL)
    if isinstance(kind, str):
        field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".sp.{kind}"
        if name == "pieces":
            field.label = _FIELD.LABEL_REPEATED
        return
    field.type = kind
    if default is not None:
        field.default_value = default
