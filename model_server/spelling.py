"""The bytes behind each token id, by the two ways in which vocabularies write bytes as text.

Knows one token at a time; sequences, streams and characters are the tokenizer's business.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import tokenizers

from sax.errors import CheckpointError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Spelling:
    """The bytes of every id of one vocabulary."""

    def __init__(
        self, tokenizer: tokenizers.Tokenizer, spell: Callable[[str], bytes], *, strip_left: bool
    ) -> None:
        """`spell` turns an ordinary token into bytes; added tokens stand for themselves."""
        added = tokenizer.get_added_tokens_decoder()
        self._tokenizer = tokenizer
        self._spell = spell
        self._added = {token_id: token.content.encode() for token_id, token in added.items()}
        self.control = {i: token.content for i, token in added.items() if token.special}
        self.size = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        self.strip_left = strip_left  # the text of a whole sequence loses one leading space

    def bytes_of(self, token_id: int) -> bytes:
        """b"" for an id outside the vocabulary."""
        if token_id in self._added:
            return self._added[token_id]
        token = self._tokenizer.id_to_token(token_id) if 0 <= token_id < self.size else None
        return b"" if token is None else self._spell(token)

    def spoken_bytes(self, token_id: int) -> bytes:
        """What the token adds to a text: nothing for a control token."""
        return b"" if token_id in self.control else self.bytes_of(token_id)


def spelling_of(tokenizer: tokenizers.Tokenizer, decoder: dict[str, Any] | None) -> Spelling:
    """Chosen by the `decoder` part of tokenizer.json. Raises CheckpointError for other kinds."""
    kinds = _kinds(decoder)
    if "ByteLevel" in kinds:
        return Spelling(tokenizer, _spell_byte_level, strip_left=False)
    if "ByteFallback" in kinds or "Metaspace" in kinds:
        strip_left = "Strip" in kinds or "Metaspace" in kinds
        return Spelling(tokenizer, _spell_sentence_piece, strip_left=strip_left)
    raise CheckpointError(
        f"the tokenizer decodes with {' + '.join(kinds) or 'nothing'}; supported are ByteLevel "
        "(GPT-2, Llama 3, Qwen, ...) and ByteFallback or Metaspace (SentencePiece) tokenizers"
    )


def _kinds(decoder: dict[str, Any] | None) -> list[str]:
    if not decoder:
        return []
    if decoder["type"] == "Sequence":
        return [kind for part in decoder["decoders"] for kind in _kinds(part)]
    return [decoder["type"]]


def byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, the rest follows from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(0x100 + place): byte for place, byte in enumerate(others)}


_BYTE_OF = byte_alphabet()


def _spell_byte_level(token: str) -> bytes:
    """Every character of a token stands for one byte."""
    try:
        return bytes(_BYTE_OF[character] for character in token)
    except KeyError:
        return token.encode()


def _spell_sentence_piece(token: str) -> bytes:
    """U+2581 stands for a space, <0xAB> for one byte, all else for itself."""
    if match := _BYTE_TOKEN.fullmatch(token):
        return bytes.fromhex(match[1])
    return token.replace("\u2581", " ").encode()
