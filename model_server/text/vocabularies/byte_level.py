"""Builds byte-level BPE vocabularies; a token is a byte string, written in GPT-2's alphabet.

From ranks (tiktoken: two neighbours merge if together they form a token, the lowest rank first) or
from merges (GPT-2, GGUF: an ordered list of pairs). Pure.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from model_server.text.token_bytes import byte_alphabet
from model_server.text.vocabularies.cutting import (
    GPT2_WORDS,
    KIMI,
    LLAMA3,
    QWEN2,
    Cutting,
    by_pattern,
)
from model_server.text.vocabularies.vocabulary import (
    AddedToken,
    Vocabulary,
    bpe_model,
    check_different,
    in_sequence,
    merges_into,
)
from sax.errors import CheckpointError

_LETTERS = [letter for letter, _ in sorted(byte_alphabet().items(), key=lambda item: item[1])]
_LETTER_OF = dict(enumerate(_LETTERS))


def written(token: bytes) -> str:
    """Write a token's bytes in GPT-2's alphabet."""
    return token.decode("latin-1").translate(_LETTER_OF)


def byte_level(
    vocab: Mapping[str, int],
    merges: Sequence[Sequence[str]],
    added: Sequence[AddedToken],
    cutting: Cutting,
    **frame: Any,
) -> Vocabulary:
    """Build from merges; `frame`: bos, eos, adds_bos and adds_eos of `Vocabulary`."""
    return Vocabulary(
        model=bpe_model(vocab, merges, added, ignore_merges=cutting.whole_words_first),
        added=tuple(added),
        normalizer=cutting.normalizer,
        pre_tokenizer=in_sequence(cutting.steps, "pretokenizers"),
        decoder=GPT2_WORDS,
        **frame,
    )


def from_ranks(
    ranks: Mapping[bytes, int],
    added: Sequence[AddedToken],
    cutting: Cutting,
    *,
    first_id: int = 0,
    **frame: Any,
) -> Vocabulary:
    """Build from tiktoken ranks; ids are ranks plus `first_id`. Raises CheckpointError."""
    if missing := [byte for byte in range(256) if bytes([byte]) not in ranks]:
        raise CheckpointError(f"it has no token for the byte {missing[0]}: it is damaged")
    taken = {rank + first_id for rank in ranks.values()}
    if clash := next((token for token in added if token.id in taken), None):
        raise CheckpointError(f"{clash.text!r} has id {clash.id}, which another token also has")
    vocab = {written(token): rank + first_id for token, rank in ranks.items()}
    return byte_level(
        vocab,
        merges_into(sorted(vocab, key=vocab.__getitem__)),
        added,
        # tiktoken looks a whole word up before it merges.
        Cutting(cutting.steps, cutting.normalizer, whole_words_first=True),
        **frame,
    )


# Reads Mistral's tekken.json: tiktoken ranks as JSON, with control tokens at the first ids.
#
# Hand-written because mistral-common (1.13) brings 170 MB of packages and an encoder that hides
# the ranks; the server needs them as a vocabulary of the `tokenizers` library, like all others.
#
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

_LINE = re.compile(rb"[A-Za-z0-9+/]+=* [0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class TiktokenFamily:
    """The parts of a family's tokenizer that its tiktoken file lacks: they are in its code."""

    cutting: Cutting
    ranks: int  # tokens in the file
    control: tuple[str, ...]  # their ids follow the ranks
    bos: str | None
    eos: str


def _llama3() -> tuple[str, ...]:
    """Llama 3.1's names; Llama 3 reserves some of these ids."""
    named = {
        0: "<|begin_of_text|>",
        1: "<|end_of_text|>",
        4: "<|finetune_right_pad_id|>",
        6: "<|start_header_id|>",
        7: "<|end_header_id|>",
        8: "<|eom_id|>",
        9: "<|eot_id|>",
        10: "<|python_tag|>",
    }
    unnamed = iter(range(256))
    return tuple(
        named.get(place) or f"<|reserved_special_token_{next(unnamed)}|>" for place in range(256)
    )


_QWEN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205)))

# By model_type in config.json.
TIKTOKEN_FAMILIES: Mapping[str, TiktokenFamily] = MappingProxyType(
    {
        "qwen": TiktokenFamily(QWEN2, 151643, _QWEN, None, "<|endoftext|>"),
        # It begins no text by itself; the other control tokens are in its tokenizer_config.json.
        "kimi_k2": TiktokenFamily(KIMI, 163584, ("[BOS]", "[EOS]", "<|im_end|>"), None, "[EOS]"),
        "llama": TiktokenFamily(LLAMA3, 128000, _llama3(), "<|begin_of_text|>", "<|end_of_text|>"),
    }
)


def is_tiktoken(data: bytes) -> bool:
    """Detect tiktoken's format; a tokenizer.model may be this or SentencePiece's."""
    return _LINE.fullmatch(data[:4096].partition(b"\n")[0]) is not None


def read_ranks(data: bytes) -> dict[bytes, int]:
    """Return ranks by token bytes, from a line per token: its bytes in base64, and its rank.

    Hand-written because tiktoken's loader (0.14) accepts damaged files: two tokens of one rank, a
    token with two ranks, or a token that is not base64.
    Raises CheckpointError, naming the line.
    """
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line:
            continue
        token, rank = _entry(line, number)
        if ranks.setdefault(token, rank) != rank:
            raise CheckpointError(f"line {number} gives a token a second rank")
    if len(set(ranks.values())) != len(ranks):
        raise CheckpointError("two of its tokens have the same rank")
    return ranks


def _entry(line: bytes, number: int) -> tuple[bytes, int]:
    if not _LINE.fullmatch(line):
        raise CheckpointError(f"line {number} is not a token in base64 and its rank")
    token, rank = line.split()
    try:
        return base64.b64decode(token, validate=True), int(rank)
    except binascii.Error as exc:
        raise CheckpointError(f"line {number} is not a token in base64 and its rank") from exc


def tiktoken(data: bytes, model_type: str | None, added: Sequence[AddedToken] = ()) -> Vocabulary:
    """Build the vocabulary; `added` (tokenizer_config.json) replaces the family's own tokens."""
    family = TIKTOKEN_FAMILIES.get(model_type or "")
    if family is None:
        raise CheckpointError(
            f"the pre-tokenizer of {model_type!r} models is not in this file; known are "
            f"{', '.join(TIKTOKEN_FAMILIES)}. Save the tokenizer as tokenizer.json"
        )
    ranks = read_ranks(data)
    tokens = added or _family_tokens(family, len(ranks))
    texts = {token.text for token in tokens}
    return from_ranks(
        ranks,
        tokens,
        family.cutting,
        bos=family.bos if family.bos in texts else None,
        eos=family.eos if family.eos in texts else None,
        adds_bos=family.bos in texts,
    )


def _family_tokens(family: TiktokenFamily, found: int) -> list[AddedToken]:
    if found != family.ranks:
        raise CheckpointError(
            f"it has {found} tokens where its family has {family.ranks}: it is truncated or of "
            "another model. If it is correct, list its control tokens as added_tokens_decoder in "
            "tokenizer_config.json"
        )
    return [
        AddedToken(id=found + place, text=text, control=True)
        for place, text in enumerate(family.control)
    ]


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
    check_different([text for text, _ in texts])
    if missing := {"<s>", "</s>"} - {text for text, _ in texts}:
        raise CheckpointError(f"it has no control token {min(missing)}")
    return [
        AddedToken(id=place, text=text, control=control)
        for place, (text, control) in enumerate(texts)
    ]
