"""Reads how a late-interaction model (ColBERT) turns texts into a vector per token.

Two forms: PyLate's, keys of config_sentence_transformers.json beside a modules.json that has Dense
modules and no Pooling; and colbert-ir's, an artifact.metadata beside weights whose projection is
`linear.weight`, without a modules.json.

Source: Khattab and Zaharia 2020 (arXiv:2004.12832), Santhanam et al. 2021 (arXiv:2112.01488).
"""

from __future__ import annotations

import json
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_server.checkpoints.files import read_json
from model_server.text.late_tokenizer import LateInteraction
from sax.errors import CheckpointError

METADATA = "artifact.metadata"
_SPECIAL = "special_tokens_map.json"
_ARCHITECTURE = "HF_ColBERT"
_MOST_LENGTH = 1 << 20


def late_of_modules(config: Mapping[str, Any], folder: Path) -> LateInteraction:
    """Read PyLate's settings, config_sentence_transformers.json. Raises CheckpointError."""
    path = folder / "config_sentence_transformers.json"
    similarity = config.get("similarity_fn_name") or "MaxSim"
    if similarity != "MaxSim":
        raise CheckpointError(f"{path} compares tokens by {similarity!r}; supported is MaxSim")
    words = config.get("skiplist_words")
    words = list(string.punctuation) if words is None else words
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise CheckpointError(f"{path} has skiplist_words that are not a list of texts")
    return LateInteraction(
        query_prefix=_text(path, config, "query_prefix", "[Q] "),
        document_prefix=_text(path, config, "document_prefix", "[D] "),
        query_length=_length(path, config, "query_length", 32),
        document_length=_length(path, config, "document_length", 180),
        expands=_flag(path, config, "do_query_expansion", default=True),
        attends=_flag(path, config, "attend_to_expansion_tokens", default=False),
        skipped=tuple(words),
        mask=_mask(folder),
    )


def late_of_metadata(folder: Path) -> LateInteraction | None:
    """Read colbert-ir's settings; None: the folder is of another kind. Raises CheckpointError."""
    path = folder / METADATA
    if not path.is_file() and not _is_named(folder):
        return None
    config = read_json(path, missing={})
    for key, known in (("similarity", "cosine"), ("interaction", "colbert")):
        if config.get(key, known) != known:
            raise CheckpointError(f"{path} has {key} = {config[key]!r}; supported is {known!r}")
    skips = _flag(path, config, "mask_punctuation", default=True)
    return LateInteraction(
        query_prefix=_text(path, config, "query_token_id", "[unused0]"),
        document_prefix=_text(path, config, "doc_token_id", "[unused1]"),
        query_length=_length(path, config, "query_maxlen", 32),
        document_length=_length(path, config, "doc_maxlen", 220),
        expands=True,
        attends=_flag(path, config, "attend_to_mask_tokens", default=False),
        skipped=tuple(string.punctuation) if skips else (),
        mask=_mask(folder),
    )


def _is_named(folder: Path) -> bool:
    return read_json(folder / "config.json", missing={}).get("architectures") == [_ARCHITECTURE]


def write_mask(late: LateInteraction, folder: Path) -> None:
    """Name the mask token for a folder whose tokenizer_config.json does not."""
    if late.mask is not None:
        (folder / _SPECIAL).write_text(json.dumps({"mask_token": late.mask}) + "\n")


def _mask(folder: Path) -> str | None:
    """Return the text of the mask token, as these files have it."""
    for name in ("tokenizer_config.json", _SPECIAL):
        token = read_json(folder / name, missing={}).get("mask_token")
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str):
            return text
    return None


def _text(path: Path, config: Mapping[str, Any], key: str, default: str) -> str:
    value = config.get(key)
    if value is not None and not isinstance(value, str):
        raise CheckpointError(f"{path} has {key} = {value!r}; it must be a text")
    return default if value is None else value


def _length(path: Path, config: Mapping[str, Any], key: str, default: int) -> int:
    value = config.get(key)
    if value is None:
        return default
    if type(value) is not int or not 3 <= value <= _MOST_LENGTH:
        raise CheckpointError(f"{path} has {key} = {value!r}; it must be a number of tokens")
    return value


def _flag(path: Path, config: Mapping[str, Any], key: str, *, default: bool) -> bool:
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise CheckpointError(f"{path} has {key} = {value!r}; it must be true or false")
    return default if value is None else value
