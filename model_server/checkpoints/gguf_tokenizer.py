"""The tokenizer inside a GGUF file, as the tokenizer.json its makers would have written.

Byte-level BPE only (`tokenizer.ggml.model` gpt2). How text is cut before BPE is not in the file,
only a name for it (`tokenizer.ggml.pre`): PRE_TOKENIZERS says what the names mean.
Pure: metadata in, tokenizer out. Raises CheckpointError without a file name, which the caller adds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from gguf.constants import TokenType

from model_server.tokenizer import HfTokenizer
from sax.errors import CheckpointError

_GPT2_WORDS = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
_BYTES_ONLY = {**_GPT2_WORDS, "use_regex": False}
_SINGLE_DIGITS = {"type": "Digits", "individual_digits": True}


def _words_with_digits(digits: str) -> dict[str, Any]:
    """The cl100k family's way of cutting text; it differs in how many digits go together."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + "|"
        r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


PRE_TOKENIZERS: Mapping[str, list[dict[str, Any]]] = MappingProxyType(
    {
        "gpt-2": [_GPT2_WORDS],
        "smollm": [_SINGLE_DIGITS, _GPT2_WORDS],
        "starcoder": [_SINGLE_DIGITS, _GPT2_WORDS],
        "llama-bpe": [_words_with_digits(r"\p{N}{1,3}"), _BYTES_ONLY],
        "qwen2": [_words_with_digits(r"\p{N}"), _BYTES_ONLY],
    }
)
_CONTROL = (TokenType.CONTROL, TokenType.UNKNOWN)
_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def tokenizer_of(metadata: dict[str, Any]) -> HfTokenizer:
    """Raises CheckpointError if the vocabulary is of another kind or does not fit together."""
    tokens = _tokens(metadata)
    bos_id = _token_id(metadata, "bos_token_id", len(tokens))
    eos_ids = [_token_id(metadata, key, len(tokens)) for key in _EOS_KEYS]
    pre = metadata.get("tokenizer.ggml.pre")
    adds_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", pre == "llama-bpe"))
    return HfTokenizer(
        json.dumps(_tokenizer_json(metadata, tokens, bos_id if adds_bos else None)),
        bos=bos_id,
        eos=[token_id for token_id in eos_ids if token_id is not None],
        adds_bos=adds_bos,
    )


def _tokens(metadata: dict[str, Any]) -> list[str]:
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise CheckpointError(
            f"its tokenizer is of kind {kind!r}; supported from GGUF: gpt2 (byte-level BPE). "
            "Use the model's Hugging Face folder"
        )
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or len(set(tokens)) != len(tokens):
        raise CheckpointError("its tokenizer.ggml.tokens is not a list of different texts")
    return tokens


def _token_id(metadata: dict[str, Any], key: str, size: int) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{key}")
    if value is None:
        return None
    if not isinstance(value, int) or not 0 <= value < size:
        raise CheckpointError(f"its tokenizer.ggml.{key} is {value!r}, not one of {size} tokens")
    return value


def _tokenizer_json(
    metadata: dict[str, Any], tokens: list[str], start: int | None
) -> dict[str, Any]:
    pre = metadata.get("tokenizer.ggml.pre")
    if not isinstance(pre, str) or pre not in PRE_TOKENIZERS:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise CheckpointError(
            f"its text is cut the {pre!r} way; known from GGUF: {known}. "
            "Use the model's Hugging Face folder"
        )
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(metadata, tokens),
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": PRE_TOKENIZERS[pre]},
        "post_processor": None if start is None else _starts_with(tokens[start], start),
        "decoder": _GPT2_WORDS,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre == "llama-bpe",
            "vocab": {token: token_id for token_id, token in enumerate(tokens)},
            "merges": _merges(metadata),
        },
    }


def _merges(metadata: dict[str, Any]) -> list[list[str]]:
    merges = metadata.get("tokenizer.ggml.merges")
    pairs = [merge.split(" ") for merge in merges] if isinstance(merges, list) else None
    if pairs is None or any(len(pair) != 2 for pair in pairs):
        raise CheckpointError("its tokenizer.ggml.merges is not a list of pairs")
    return pairs


def _added_tokens(metadata: dict[str, Any], tokens: list[str]) -> list[dict[str, Any]]:
    types = metadata.get("tokenizer.ggml.token_type")
    if not isinstance(types, np.ndarray) or len(types) != len(tokens):
        raise CheckpointError(f"its tokenizer.ggml.token_type is not a list of {len(tokens)} kinds")
    added = np.flatnonzero(np.isin(types, [*_CONTROL, TokenType.USER_DEFINED])).tolist()
    return [_added_token(i, tokens[i], special=types[i] in _CONTROL) for i in added]


def _added_token(token_id: int, content: str, *, special: bool) -> dict[str, Any]:
    return {
        "id": token_id,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": bool(special),
    }


def _starts_with(token: str, token_id: int) -> dict[str, Any]:
    """A post-processor for other programs that read the converted tokenizer.json."""
    start = {"SpecialToken": {"id": token, "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "type": "TemplateProcessing",
        "single": [start, first],
        "pair": [start, first, start, second],
        "special_tokens": {token: {"id": token, "ids": [token_id], "tokens": [token]}},
    }
