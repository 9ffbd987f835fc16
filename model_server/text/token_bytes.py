"""Token bytes: the bytes of each token id, for the three encodings that vocabularies use."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import tokenizers

from sax.errors import CheckpointError

_SPACE = "\u2581"
# Replacements that BERT's decoder makes in each piece, in this order.
_TIDIED = (
    *((f" {stop}", stop) for stop in ".?!,"),
    (" ' ", "'"),
    *((f" {end}", end) for end in ("n't", "'m")),
    (" do not", " don't"),
    *((f" {end}", end) for end in ("'s", "'ve", "'re")),
)
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """Bytes of every id of one vocabulary."""

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        to_bytes: Callable[[str], bytes],
        added_to_bytes: Callable[[str], bytes] = str.encode,
        *,
        strip_left: int,
    ) -> None:
        """`to_bytes` turns an ordinary token into bytes; control tokens are taken literally."""
        added = tokenizer.get_added_tokens_decoder()
        self._tokenizer = tokenizer
        self._to_bytes = to_bytes
        self._added = {
            token_id: token.content.encode() if token.special else added_to_bytes(token.content)
            for token_id, token in added.items()
        }
        self.control = {i: token.content for i, token in added.items() if token.special}
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        ids = vocabulary.values()
        # As written, which is never shorter; WordPiece adds a space.
        self.longest = 1 + max(map(len, map(str.encode, vocabulary)), default=0)
        self.size = 1 + max(ids, default=-1)
        self.ordinary_size = 1 + max(set(ids) - added.keys(), default=-1)
        self.strip_left = strip_left  # leading spaces that a whole sequence's text may lose

    def bytes_of(self, token_id: int) -> bytes:
        """Return a token's bytes; b"" for an id outside the vocabulary."""
        if token_id in self._added:
            return self._added[token_id]
        token = self._tokenizer.id_to_token(token_id) if 0 <= token_id < self.size else None
        return b"" if token is None else self._to_bytes(token)

    def text_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to decoded text; b"" for a control token."""
        return b"" if token_id in self.control else self.bytes_of(token_id)


def token_bytes_of(tokenizer: tokenizers.Tokenizer, decoder: dict[str, Any] | None) -> TokenBytes:
    """Choose by the `decoder` part of tokenizer.json. Raises CheckpointError for other kinds."""
    steps = _steps(decoder)
    kinds = [step["type"] for step in steps]
    if "ByteLevel" in kinds:
        return TokenBytes(tokenizer, _byte_level_bytes, strip_left=0)
    if "ByteFallback" in kinds or "Metaspace" in kinds or any(map(_writes_spaces, steps)):
        strip_left = max(map(_stripped_spaces, steps), default=0)
        return TokenBytes(tokenizer, _piece_bytes, _spaced_bytes, strip_left=strip_left)
    if kinds == ["WordPiece"]:
        to_bytes = partial(_word_piece_bytes, steps[0]["prefix"], steps[0].get("cleanup", True))
        return TokenBytes(tokenizer, to_bytes, to_bytes, strip_left=1)
    raise CheckpointError(
        f"the tokenizer decodes with {' + '.join(kinds) or 'nothing'}; supported are ByteLevel "
        "(GPT-2, Llama 3, Qwen, ...), ByteFallback or Metaspace (SentencePiece) and WordPiece "
        "(BERT) tokenizers"
    )


def _steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if not decoder:
        return []
    if decoder["type"] == "Sequence":
        return [step for part in decoder["decoders"] for step in _steps(part)]
    return [decoder]


def _writes_spaces(step: dict[str, Any]) -> bool:
    return step["type"] == "Replace" and step.get("pattern") == {"String": _SPACE}


def _stripped_spaces(step: dict[str, Any]) -> int:
    if step["type"] == "Strip" and step["content"] == " ":
        return step["start"]
    drops = step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never"
    return int(drops)


def byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, other bytes become U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(0x100 + place): byte for place, byte in enumerate(others)}


# Characters of the alphabet below U+0100 stand for bytes; others there are no part of it.
_LATIN_OF = {ord(letter): byte for letter, byte in byte_alphabet().items()}
_LATIN_OF |= {code: 0x100 for code in range(0x100) if code not in _LATIN_OF}


def _byte_level_bytes(token: str) -> bytes:
    """Each character of a token stands for one byte."""
    try:
        return token.translate(_LATIN_OF).encode("latin-1")
    except UnicodeEncodeError:  # a letter that is no part of the alphabet
        return token.encode()


def _piece_bytes(token: str) -> bytes:
    """U+2581 stands for a space and <0xAB> for a byte; other characters are literal."""
    if match := _BYTE_TOKEN.fullmatch(token):
        return bytes.fromhex(match[1])
    return _spaced_bytes(token)


def _spaced_bytes(token: str) -> bytes:
    return token.replace(_SPACE, " ").encode()


def _word_piece_bytes(prefix: str, tidy: bool, token: str) -> bytes:
    """A word starts with a space unless the piece continues one; `tidy` joins punctuation to it."""
    text = token[len(prefix) :] if token.startswith(prefix) else f" {token}"
    for written, tidied in _TIDIED if tidy else ():
        text = text.replace(written, tidied)
    return text.encode()
