"""Rebuilds the tokenizer.json of a GGUF file's tokenizer from its metadata.

Supports these values of `tokenizer.ggml.model`: gpt2 (byte-level BPE), llama (SentencePiece BPE,
which merges by score), gemma4 (the same with a list of merges), t5 (SentencePiece Unigram) and bert
(WordPiece). The file does not hold the pre-tokenizer of byte-level BPE, only a name for it
(`tokenizer.ggml.pre`).
Pure. Raises CheckpointError without a file name, which the caller adds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from gguf.constants import TokenType

from model_server.text.tokenizer import HfTokenizer
from model_server.text.vocabularies.byte_level import byte_level
from model_server.text.vocabularies.cutting import CUTTINGS, Cutting
from model_server.text.vocabularies.sentence_piece import SPACE, Pieces, sentence_piece
from model_server.text.vocabularies.vocabulary import AddedToken, Vocabulary, check_different
from model_server.text.vocabularies.word_piece import word_piece
from sax.errors import CheckpointError

PRE_TOKENIZERS: Mapping[str, list[Mapping[str, Any]]] = MappingProxyType(
    {name: list(cutting.steps) for name, cutting in CUTTINGS.items()}
)
FOR_TOOLS = "tokenizer.chat_template.tool_use"  # another chat template, for chats with tools
_CONTROL = (TokenType.CONTROL, TokenType.UNKNOWN)
_ADDED = (*_CONTROL, TokenType.USER_DEFINED)
_MIDDLE_KEYS = ("fim_pre_token_id", "fim_suf_token_id", "fim_mid_token_id")
_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
# Texts that are nothing else, whatever kind of token a file says they are.
_ALWAYS = frozenset(
    {
        "<|call|>",
        "<|calls|>",
        "<|end_of_text|>",
        "<|end|>",
        "<|endoftext|>",
        "<|eom_id|>",
        "<|eot_id|>",
        "<|flush|>",
        "<|im_end|>",
        "<|return|>",
        "<|tool_response>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<turn|>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
    }
)
# Texts that are plain ones in some vocabularies, such as HTML's tag for what is struck out.
_IF_CONTROL = frozenset({"</s>", "<EOT>", "<eos>", "[EOS]", "[EOT]", "_<EOT>"})
# Where these are, <|end|> ends a message of several in one answer (gpt-oss, Solar Open).
_MESSAGES = (frozenset({"<|return|>", "<|call|>"}), frozenset({"<|flush|>", "<|calls|>"}))
_MESSAGE_END = "<|end|>"


def tokenizer_of(metadata: dict[str, Any]) -> HfTokenizer:
    """Return the tokenizer. Raises CheckpointError if its kind is unsupported or it is invalid."""
    kind = metadata.get("tokenizer.ggml.model")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise CheckpointError(
            f"its tokenizer is of kind {kind!r}; supported from GGUF: {', '.join(_KINDS)}. "
            "Use the model's Hugging Face folder"
        )
    tokens = _tokens(metadata)
    bos_id = _token_id(metadata, "bos_token_id", len(tokens))
    eos_ids = [_token_id(metadata, key, len(tokens)) for key in _EOS_KEYS]
    adds_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", _adds_bos(kind, metadata)))
    frame = {
        "bos": None if bos_id is None else tokens[bos_id],
        "eos": None if eos_ids[0] is None else tokens[eos_ids[0]],
        "adds_bos": adds_bos,
        "adds_eos": metadata.get("tokenizer.ggml.add_eos_token") is True,
    }
    kinds = _kinds(metadata, len(tokens))
    ends = [] if kind == "bert" else ends_by_text(tokens, kinds)
    kinds[ends] = TokenType.CONTROL
    typed = metadata | {"tokenizer.ggml.token_type": kinds}
    vocabulary = _KINDS[kind](typed, tokens, frame)
    return HfTokenizer(
        vocabulary.serialized(),
        bos=vocabulary.bos,
        eos=[*(token_id for token_id in eos_ids if token_id is not None), *ends],
        adds_bos=adds_bos,
        middle_ids=_middle_ids(metadata, len(tokens)),
    )


def _kinds(metadata: dict[str, Any], size: int) -> np.ndarray:
    """Return the kind of each token: as in llama.cpp plain ones where the file says nothing."""
    if "tokenizer.ggml.token_type" not in metadata:
        return np.full(size, TokenType.NORMAL, np.int32)
    return _per_token(metadata, "token_type", size).copy()


def _middle_ids(metadata: dict[str, Any], size: int) -> tuple[int, int, int] | None:
    """Return the tokens for filling in the middle, if the file names all of them."""
    prefix, suffix, middle = (_token_id(metadata, key, size) for key in _MIDDLE_KEYS)
    if prefix is None or suffix is None or middle is None:
        return None
    return prefix, suffix, middle


def _adds_bos(kind: str, metadata: dict[str, Any]) -> bool:
    """Return the default for files without add_bos_token."""
    if kind == "gpt2":
        pre = metadata.get("tokenizer.ggml.pre")
        return isinstance(pre, str) and pre in CUTTINGS and CUTTINGS[pre].adds_bos
    return kind != "t5"


def _tokens(metadata: dict[str, Any]) -> list[str]:
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list):
        raise CheckpointError("its tokenizer.ggml.tokens is not a list of texts")
    check_different(tokens)
    return tokens


def _token_id(metadata: dict[str, Any], key: str, size: int) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{key}")
    if value is None:
        return None
    if not isinstance(value, int) or not 0 <= value < size:
        raise CheckpointError(f"its tokenizer.ggml.{key} is {value!r}, not one of {size} tokens")
    return value


def _byte_level(metadata: dict[str, Any], tokens: list[str], frame: dict[str, Any]) -> Vocabulary:
    kinds = _per_token(metadata, "token_type", len(tokens))
    added = [
        AddedToken(id=i, text=tokens[i], control=kinds[i] in _CONTROL)
        for i in np.flatnonzero(np.isin(kinds, _ADDED)).tolist()
    ]
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    return byte_level(vocab, _merges(metadata), added, _cutting(metadata), **frame)


def _cutting(metadata: dict[str, Any]) -> Cutting:
    pre = metadata.get("tokenizer.ggml.pre")
    if not isinstance(pre, str) or pre not in CUTTINGS:
        known = ", ".join(sorted(CUTTINGS))
        raise CheckpointError(
            f"its pre-tokenizer is {pre!r}; supported from GGUF: {known}. "
            "Use the model's Hugging Face folder"
        )
    return CUTTINGS[pre]


def _merges(metadata: dict[str, Any]) -> list[list[str]]:
    merges = metadata.get("tokenizer.ggml.merges")
    pairs = [merge.split(" ") for merge in merges] if isinstance(merges, list) else None
    if pairs is None or set(map(len, pairs)) - {2}:
        raise CheckpointError("its tokenizer.ggml.merges is not a list of pairs")
    return pairs


def _sentence_piece(
    metadata: dict[str, Any], tokens: list[str], frame: dict[str, Any]
) -> Vocabulary:
    kind = metadata.get("tokenizer.ggml.model")
    unigram, listed = kind == "t5", kind == "gemma4"
    kinds = _per_token(metadata, "token_type", len(tokens)).copy()
    unknown = _token_id(metadata, "unknown_token_id", len(tokens))
    if unknown is not None:
        kinds[np.flatnonzero(kinds == TokenType.UNKNOWN)] = TokenType.CONTROL
        kinds[unknown] = TokenType.UNKNOWN
    pieces = Pieces(
        unigram=unigram,
        texts=tokens,
        scores=[] if listed else _per_token(metadata, "scores", len(tokens)).tolist(),
        merges=_merges(metadata) if listed else None,
        kinds=kinds.tolist(),
        byte_fallback=bool(np.any(kinds == TokenType.BYTE)),
        charsmap=_charsmap(metadata),
        starts_with_space=metadata.get("tokenizer.ggml.add_space_prefix", not listed) is not False,
        collapses_spaces=metadata.get("tokenizer.ggml.remove_extra_whitespaces", unigram) is True,
    )
    return sentence_piece(pieces, **frame)


def _charsmap(metadata: dict[str, Any]) -> bytes:
    given = metadata.get("tokenizer.ggml.precompiled_charsmap")
    return b"" if given is None else np.asarray(given, np.int64).astype(np.uint8).tobytes()


def _per_token(metadata: dict[str, Any], key: str, size: int) -> np.ndarray:
    values = metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(values, np.ndarray) or len(values) != size:
        raise CheckpointError(f"its tokenizer.ggml.{key} is not a list of {size} numbers")
    return values


def _word_piece(metadata: dict[str, Any], tokens: list[str], frame: dict[str, Any]) -> Vocabulary:
    """GGUF marks pieces that begin a word; BERT's own vocabulary marks those that continue one."""
    kinds = _per_token(metadata, "token_type", len(tokens))
    return word_piece(list(_bert_tokens(tokens, kinds)))


def _bert_tokens(tokens: list[str], kinds: np.ndarray) -> Iterator[str]:
    for token, kind in zip(tokens, kinds.tolist(), strict=True):
        if kind in _CONTROL or (token.startswith("[") and token.endswith("]")):
            yield token
        else:
            yield token[1:] if token.startswith(SPACE) else f"##{token}"


_KINDS: Mapping[str, Callable[[dict[str, Any], list[str], dict[str, Any]], Vocabulary]] = (
    MappingProxyType(
        {
            "gpt2": _byte_level,
            "llama": _sentence_piece,
            "gemma4": _sentence_piece,
            "t5": _sentence_piece,
            "bert": _word_piece,
        }
    )
)


def ends_by_text(tokens: Sequence[str], kinds: np.ndarray) -> list[int]:
    """Return the ids of end tokens. kinds: i32[V], gguf's TokenType of each."""
    found = {
        token: token_id
        for token_id, token in enumerate(tokens)
        if token in _ALWAYS or (token in _IF_CONTROL and kinds[token_id] == TokenType.CONTROL)
    }
    if any(marks <= found.keys() for marks in _MESSAGES):
        found.pop(_MESSAGE_END, None)
    return list(found.values())
