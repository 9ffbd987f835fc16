"""Reads Mistral's tekken.json: tiktoken ranks as JSON, with control tokens at the first ids.

Hand-written because mistral-common (1.13) brings 170 MB of packages and an encoder that hides the
ranks; the server needs them as a vocabulary of the `tokenizers` library, like all others.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from model_server.text.vocabularies.byte_level import from_ranks
from model_server.text.vocabularies.cutting import by_pattern
from model_server.text.vocabularies.vocabulary import AddedToken, Vocabulary, check_different
from sax.errors import CheckpointError

# Files before version 11 do not list their control tokens.
_CONTROL = (
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
)


def tekken(content: dict[str, Any]) -> Vocabulary:
    """Build the vocabulary. Raises CheckpointError if the file is inconsistent."""
    try:
        settings, entries = content["config"], content["vocab"]
        size, reserved = settings["default_vocab_size"], settings["default_num_special_tokens"]
        ranks = _ranks(entries, size - reserved)
        control = _control(content.get("special_tokens"), reserved)
        cutting = by_pattern(settings["pattern"])
    except (KeyError, TypeError, AttributeError, binascii.Error) as exc:
        raise CheckpointError(f"it is not a valid tekken.json: {type(exc).__name__} {exc}") from exc
    return from_ranks(
        ranks, control, cutting, first_id=reserved, bos="<s>", eos="</s>", adds_bos=True
    )


def _ranks(entries: list[dict[str, Any]], count: int) -> dict[bytes, int]:
    """Return the lowest `count` ranks: the file has more tokens than models use."""
    ranks = {
        base64.b64decode(entry["token_bytes"], validate=True): entry["rank"] for entry in entries
    }
    kept = {token: rank for token, rank in ranks.items() if rank < count}
    if sorted(kept.values()) != list(range(count)):
        raise CheckpointError(f"its ranks are not all of 0 to {count - 1}: it is truncated")
    return kept


def _control(listed: list[dict[str, Any]] | None, count: int) -> list[AddedToken]:
    given = {place: (text, True) for place, text in enumerate(_CONTROL)}
    if listed is not None:
        given = {e["rank"]: (e["token_str"], e.get("is_control", True)) for e in listed}
    texts = [given.get(place, (f"<SPECIAL_{place}>", True)) for place in range(count)]
    check_different(text for text, _ in texts)
    if missing := {"<s>", "</s>"} - {text for text, _ in texts}:
        raise CheckpointError(f"it has no control token {min(missing)}")
    return [
        AddedToken(id=place, text=text, control=control)
        for place, (text, control) in enumerate(texts)
    ]
