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
_START = r"\A"  # of a pattern that looks at the start of a text only


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
    return _changed(tokenizer, tokenizer.normalizer, _from_json(_never(steps)))


def without_any_first_space(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Return the tokenizer for text that continues other text: its start is like its middle."""
    normal = [_in_the_middle(step) for step in _each(part_of(tokenizer.normalizer))]
    words = [_in_the_middle(step) for step in _each(part_of(tokenizer.pre_tokenizer))]
    normalizer = normalizers.Sequence([])  # replaced by the states below
    kept = {"type": "Sequence", "normalizers": [step for step in normal if step]}
    normalizer.__setstate__(json.dumps(kept).encode())
    return _changed(tokenizer, normalizer, _from_json({"type": "Sequence", "pretokenizers": words}))


def _changed(
    tokenizer: tokenizers.Tokenizer,
    normalizer: normalizers.Normalizer | None,
    pre_tokenizer: pre_tokenizers.PreTokenizer,
) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(tokenizer.model)  # the vocabulary is shared, not copied
    made.normalizer = normalizer
    made.pre_tokenizer = pre_tokenizer
    made.add_tokens(list(tokenizer.get_added_tokens_decoder().values()))
    made.encode_special_tokens = True
    return made


def _each(step: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return the single steps of a normaliser or pre-tokenizer."""
    if step is None:
        return []
    parts = step.get("normalizers", step.get("pretokenizers"))
    return [step] if parts is None else [each for part in parts for each in _each(part)]


def _in_the_middle(step: dict[str, Any]) -> dict[str, Any]:
    """Return the step without what it does to the start of a text; {} if nothing is left."""
    match step:
        case {"type": "Prepend"}:
            return {}
        case {"type": "Metaspace"}:
            return step | {"prepend_scheme": "never"}
        case {"type": "ByteLevel", "add_prefix_space": True}:
            return step | {"add_prefix_space": False}
        case {"type": "Strip", "strip_left": True}:
            return step | {"strip_left": False}
        case {"type": "Replace", "pattern": {"Regex": str(pattern)}, "content": content} if (
            pattern.startswith(_START)
        ):
            # The text that is added is added there alone; spaces are removed elsewhere too.
            elsewhere = "" if content else pattern.partition("|")[2]
            return step | {"pattern": {"Regex": elsewhere}} if elsewhere else {}
    return step


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
