"""Converts a tokenizer to GGUF metadata: the inverse of `tokenizer`.

GGUF names pre-tokenizers but does not store their rules, so the result is read back and must give
the same tokens for probe texts that expose the differences. Pure. Raises CheckpointError for a
tokenizer that GGUF cannot express.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from gguf.constants import TokenType

from model_server.checkpoints.checkpoint import Checkpoint, ordered_ends
from model_server.checkpoints.gguf.end_tokens import ends_by_text
from model_server.checkpoints.gguf.tokenizer import FOR_TOOLS, PRE_TOKENIZERS, tokenizer_of
from model_server.text.tokenizer import HfTokenizer
from model_server.text.vocabularies.sentence_piece import SPACE
from sax.errors import CheckpointError

Metadata = dict[str, Any]  # keys without the tokenizer.ggml. prefix
_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_PROBES = (
    "Hello World, I'll say: don't 1234567 3.14",
    " two  spaces\n\n new\r\n\tlines   ",
    "naïve CAFÉ — 你好世界 🙂👍🏽 ПРИВЕТ",
    "def f(x_1):\n    return x_1**2  # ok!!\n",
    "",
)


def tokenizer_metadata(source: Checkpoint) -> dict[str, Any]:
    """Return all tokenizer.* metadata, by full key."""
    tokenizer, template = source.tokenizer(), source.chat_template()
    serialized = json.loads(tokenizer.serialized)
    known = _ends(tokenizer.bos_id, ordered_ends(source), tokenizer)
    for variant in _variants(serialized, source.config):
        metadata = {f"tokenizer.ggml.{key}": value for key, value in (variant | known).items()}
        metadata["tokenizer.ggml.add_bos_token"] = tokenizer.adds_bos
        if _equal(tokenizer, metadata, serialized):
            chat = {} if template is None else {"tokenizer.chat_template": template.source}
            if template is not None and template.for_tools:
                chat[FOR_TOOLS] = template.for_tools
            return metadata | chat
    raise CheckpointError(
        "its tokenizer splits or normalises text in a way that GGUF has no name for; byte-level "
        f"pre-tokenizers that have one are {', '.join(PRE_TOKENIZERS)}"
    )


def _variants(serialized: dict[str, Any], config: Mapping[str, Any]) -> Iterator[Metadata]:
    """Yield candidate encodings of the tokenizer; `_equal` decides which one is right."""
    kind = serialized["model"]["type"]
    if kind == "BPE" and serialized["model"].get("byte_fallback"):
        kind = "SentencePiece"
    if kind not in _KINDS:
        raise CheckpointError(f"a {kind} tokenizer cannot be written as GGUF")
    return _KINDS[kind](serialized, config)


def _equal(tokenizer: HfTokenizer, metadata: Metadata, serialized: dict[str, Any]) -> bool:
    """Read the metadata back as a tokenizer and compare its tokens on the probe texts."""
    per_token = ("tokenizer.ggml.token_type", "tokenizer.ggml.scores")
    arrays = {key: np.asarray(metadata[key]) for key in per_token if key in metadata}
    written = tokenizer_of(metadata | arrays)
    own = [token["content"] for token in serialized["added_tokens"][:64]]
    texts = (*_PROBES, "x" + " y".join(own))
    return all(
        written.encode(text) == tokenizer.encode(text)
        and written.encode_chat(text) == tokenizer.encode_chat(text)
        for text in texts
    )


def _tokens(serialized: dict[str, Any], size: int) -> tuple[list[str], list[int]]:
    """Return texts and types by id; unused ids get a placeholder text."""
    model, added = serialized["model"], serialized["added_tokens"]
    ids = [*model["vocab"].values(), *(token["id"] for token in added)]
    if max(ids) >= size:
        raise CheckpointError(f"its tokenizer has the id {max(ids)}, and its vocab_size is {size}")
    tokens = [f"[PAD{token_id}]" for token_id in range(size)]
    types = [int(TokenType.UNUSED)] * size
    for token, token_id in model["vocab"].items():
        tokens[token_id], types[token_id] = token, int(TokenType.NORMAL)
    for token in added:
        kind = TokenType.CONTROL if token["special"] else TokenType.USER_DEFINED
        tokens[token["id"]], types[token["id"]] = token["content"], int(kind)
    return tokens, types


def _byte_level(serialized: dict[str, Any], config: Mapping[str, Any]) -> Iterator[Metadata]:
    tokens, types = _tokens(serialized, config["vocab_size"])
    given = serialized.get("pre_tokenizer") or {}
    steps = given.get("pretokenizers", [given])
    merges = [_merge(merge) for merge in serialized["model"]["merges"]]
    for name, known in PRE_TOKENIZERS.items():
        if steps == known:
            yield {
                "model": "gpt2",
                "pre": name,
                "tokens": tokens,
                "token_type": types,
                "merges": merges,
            }


def _merge(merge: str | list[str]) -> str:
    return merge if isinstance(merge, str) else " ".join(merge)


def _sentence_piece(serialized: dict[str, Any], config: Mapping[str, Any]) -> Iterator[Metadata]:
    """Score a piece by the first merge that makes it, because SentencePiece merges by score."""
    model = serialized["model"]
    tokens, types = _tokens(serialized, config["vocab_size"])
    unknown = model["vocab"].get(model.get("unk_token"))
    for token_id, token in enumerate(tokens):
        if token_id == unknown:
            types[token_id] = int(TokenType.UNKNOWN)
        elif len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            types[token_id] = int(TokenType.BYTE)
    scores = [0.0] * len(tokens)
    for place, merge in enumerate(model["merges"]):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        made = model["vocab"]["".join(pair)]
        scores[made] = scores[made] or -1.0 - place
    for prefix in (True, False):
        yield {
            "model": "llama",
            "pre": "default",
            "tokens": tokens,
            "scores": scores,
            "token_type": types,
            "add_space_prefix": prefix,
            **({} if unknown is None else {"unknown_token_id": unknown}),
        }


def _word_piece(serialized: dict[str, Any], config: Mapping[str, Any]) -> Iterator[Metadata]:
    """BERT marks pieces that continue a word, GGUF marks those that begin one."""
    tokens, types = _tokens(serialized, config["vocab_size"])
    vocab = serialized["model"]["vocab"]
    special = {
        "unknown_token_id": vocab.get("[UNK]"),
        "cls_token_id": vocab.get("[CLS]"),
        "seperator_token_id": vocab.get("[SEP]"),  # as GGUF spells it
        "padding_token_id": vocab.get("[PAD]"),
        "mask_token_id": vocab.get("[MASK]"),
    }
    yield {
        "model": "bert",
        "pre": "default",
        "tokens": [_begun(token, kind) for token, kind in zip(tokens, types, strict=True)],
        "token_type": types,
        "token_type_count": config.get("type_vocab_size", 2),
        **{key: token_id for key, token_id in special.items() if token_id is not None},
    }


def _begun(token: str, kind: int) -> str:
    if kind == TokenType.CONTROL or (token.startswith("[") and token.endswith("]")):
        return token
    return token.removeprefix("##") if token.startswith("##") else SPACE + token


def _ends(bos_id: int | None, ends: list[int], tokenizer: HfTokenizer) -> Metadata:
    """Name the ends, if there are too many but for those that every reader finds by their texts."""
    if len(ends) > len(_EOS_KEYS):
        texts = [tokenizer.token_text(token_id) for token_id in ends]
        kinds = np.full(len(ends), TokenType.CONTROL)
        found = ends_by_text(texts, kinds)
        ends = [end for place, end in enumerate(ends) if place == 0 or place not in found]
    if len(ends) > len(_EOS_KEYS):
        raise CheckpointError(f"it has {len(ends)} end tokens; GGUF holds {len(_EOS_KEYS)}")
    named: Metadata = dict(zip(_EOS_KEYS, ends, strict=False))
    return named if bos_id is None else {"bos_token_id": bos_id, **named}


_KINDS: Mapping[str, Callable[[dict[str, Any], Mapping[str, Any]], Iterator[Metadata]]] = (
    MappingProxyType(
        {"BPE": _byte_level, "SentencePiece": _sentence_piece, "WordPiece": _word_piece}
    )
)
