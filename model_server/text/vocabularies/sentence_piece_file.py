"""Reads SentencePiece's own file (tokenizer.model, spiece.model): a protocol buffer.

The schema is public; only the fields that encoding needs are declared here. Hand-written because
sentencepiece (0.2) does not expose a model's normaliser, except through generated messages that it
registers for the whole process, where another package's copy of the schema may already be.
Raises CheckpointError without a file name.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from model_server.text.vocabularies.sentence_piece import PieceKind, Pieces
from sax.errors import CheckpointError

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


def parse(data: bytes) -> Any:
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
