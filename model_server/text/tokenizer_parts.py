"""Adapter for the `tokenizers` library: converts its errors and takes its objects apart.

The library exposes the parts of a tokenizer only as JSON.
"""

from __future__ import annotations

import base64
import json
import os
from typing import Any

import tokenizers
from tokenizers import normalizers, pre_tokenizers

from model_server.text.charsmap import CharsMap
from sax.errors import CheckpointError

# The library's own threads would encode the one text they get, and take a core from the engine.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_SHORT = 2000  # characters, encoded in well under a millisecond


def parsed(serialized: str) -> tokenizers.Tokenizer:
    """Parse for plain text: control tokens in it are not recognised. Raises CheckpointError."""
    try:
        tokenizer = tokenizers.Tokenizer.from_str(serialized)
    except BaseException as exc:
        if not _is_the_librarys(exc):
            raise
        raise CheckpointError(f"the tokenizer cannot be read: {exc}") from exc
    # A tokenizer.json may keep truncation from training: never shorten a prompt silently.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer


def encoded(tokenizer: tokenizers.Tokenizer, text: str) -> tokenizers.Encoding:
    """Encode without the post-processor's tokens. Raises CheckpointError.

    `encode_batch` lets other threads run meanwhile, and `encode` does not: a megabyte would stop
    the process for a second. A short text is over before another thread could begin.
    """
    try:
        if len(text) > _SHORT:
            return tokenizer.encode_batch([text], add_special_tokens=False)[0]
        return tokenizer.encode(text, add_special_tokens=False)
    except BaseException as exc:
        if not _is_the_librarys(exc):
            raise
        raise CheckpointError(f"the tokenizer fails on a text: {exc}") from exc


def _is_the_librarys(exc: BaseException) -> bool:
    """True for the library's errors: a bare Exception, or a panic, which is not an Exception."""
    return isinstance(exc, Exception) or type(exc).__name__ == "PanicException"


def part_of(part: Any) -> dict[str, Any] | None:
    """Return a normaliser, pre-tokenizer or decoder as it is in tokenizer.json."""
    return None if part is None else json.loads(part.__getstate__())


def take_charsmap(tokenizer: tokenizers.Tokenizer) -> CharsMap | None:
    """Remove and return SentencePiece's rules if the normaliser starts with them, else None."""
    normalizer = part_of(tokenizer.normalizer) or {}
    steps: list[dict[str, Any]] = normalizer.get("normalizers", [normalizer])
    if not normalizer or not steps or steps[0]["type"] != "Precompiled":
        return None
    added = tokenizer.get_added_tokens_decoder().values()
    rest = normalizers.Sequence([])
    rest.__setstate__(json.dumps({"type": "Sequence", "normalizers": steps[1:]}).encode())
    tokenizer.normalizer = rest
    compiled = base64.b64decode(steps[0]["precompiled_charsmap"])
    return CharsMap(compiled, [token.content for token in added if not token.special])


def unknown_id(tokenizer: tokenizers.Tokenizer) -> int | None:
    """Return the id of the unknown token, which plain text may become."""
    model: Any = tokenizer.model
    if isinstance(model, tokenizers.models.Unigram):
        return json.loads(model.__getstate__())["unk_id"]
    unknown = getattr(model, "unk_token", None)
    return None if unknown is None else tokenizer.token_to_id(unknown)


def without_first_space(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Return the tokenizer for text that continues after a control token.

    Some add a space only before the first text of a sequence; the library sees one text at a time
    and would add it to each.
    """
    steps = part_of(tokenizer.pre_tokenizer)
    if steps is None or not _first_only(steps):
        return tokenizer
    inner = tokenizers.Tokenizer(tokenizer.model)  # the vocabulary is shared, not copied
    inner.normalizer = tokenizer.normalizer
    inner.pre_tokenizer = _from_json(_never(steps))
    inner.add_tokens(list(tokenizer.get_added_tokens_decoder().values()))
    inner.encode_special_tokens = True
    return inner


def _first_only(step: Any) -> bool:
    if step["type"] == "Sequence":
        return any(map(_first_only, step["pretokenizers"]))
    return step["type"] == "Metaspace" and step.get("prepend_scheme") == "first"


def _never(step: dict[str, Any]) -> dict[str, Any]:
    if step["type"] == "Sequence":
        return step | {"pretokenizers": [_never(part) for part in step["pretokenizers"]]}
    return step | {"prepend_scheme": "never"} if _first_only(step) else step


def _from_json(step: dict[str, Any]) -> pre_tokenizers.PreTokenizer:
    made = pre_tokenizers.Sequence([])  # replaced by the state below
    made.__setstate__(json.dumps(step).encode())
    return made
